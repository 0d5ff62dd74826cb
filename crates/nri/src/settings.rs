//! Settings of a plugin and its connection.

use std::{path::PathBuf, time::Duration};

/// Settings of a plugin and its connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NriSettings {
    /// Socket of the runtime.
    pub socket: PathBuf,
    /// Name of the plugin.
    pub name: String,
    /// Index of the plugin: two digits. The runtime calls its plugins in ascending order of their indexes.
    pub index: String,
    /// Timeout from the connection to the end of the first synchronization. Runtimes allow five seconds by default.
    pub registration_timeout: Duration,
    /// Initial back-off after a lost connection. It doubles with each failure.
    pub retry_min: Duration,
    /// Maximum back-off after a lost connection.
    pub retry_max: Duration,
}

// === impl NriSettings ===

impl NriSettings {
    /// Settings with the default times.
    pub fn new(
        socket: impl Into<PathBuf>,
        name: impl Into<String>,
        index: impl Into<String>,
    ) -> Self {
        Self {
            socket: socket.into(),
            name: name.into(),
            index: index.into(),
            registration_timeout: Duration::from_secs(10),
            retry_min: Duration::from_millis(250),
            retry_max: Duration::from_secs(10),
        }
    }
}
