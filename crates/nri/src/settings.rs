//! Settings of a plugin and its connection.

use std::{path::PathBuf, time::Duration};

/// Settings of a plugin and its connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NriSettings {
    /// Socket of the runtime.
    pub socket: PathBuf,
    /// Name of the plugin.
    pub name: String,
    /// Place among the runtime's plugins: two digits, called in ascending order.
    pub index: String,
    /// Time from the connection to the end of the first synchronization. Runtimes allow five seconds by default.
    pub registration: Duration,
    /// First pause after a lost connection; it doubles.
    pub retry_first: Duration,
    /// Longest pause after a lost connection.
    pub retry_most: Duration,
}

// === impl NriSettings ===

impl NriSettings {
    /// The usual times for a plugin of this name and place.
    pub fn new(
        socket: impl Into<PathBuf>,
        name: impl Into<String>,
        index: impl Into<String>,
    ) -> Self {
        Self {
            socket: socket.into(),
            name: name.into(),
            index: index.into(),
            registration: Duration::from_secs(10),
            retry_first: Duration::from_millis(250),
            retry_most: Duration::from_secs(10),
        }
    }
}
