//! A connection to the runtime that comes back: the runtime may start later than the plugin, and restart.

use std::{path::PathBuf, time::Duration};

use tokio::{net::UnixStream, sync::watch, time::sleep};
use tokio_util::sync::CancellationToken;
use windlass_host::{backoff::backoff, causes};

use crate::{
    Plugin,
    session::{SessionError, serve},
};

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

/// State of the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NriState {
    /// The plugin is not connected, for this reason.
    Lost(String),
    /// The plugin is synchronized with this runtime: its name and version.
    Connected(String),
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

// === impl NriState ===

impl Default for NriState {
    fn default() -> Self {
        Self::Lost("no connection was tried yet".to_owned())
    }
}

/// Keeps the plugin connected until stopped, and publishes the state of the connection.
pub async fn run<P: Plugin>(
    settings: NriSettings,
    mut plugin: P,
    state: watch::Sender<NriState>,
    stop: CancellationToken,
) {
    let keeping = Box::pin(keep(&settings, &mut plugin, &state));
    stop.run_until_cancelled(keeping).await;
}

async fn keep<P: Plugin>(settings: &NriSettings, plugin: &mut P, state: &watch::Sender<NriState>) {
    let socket = settings.socket.display();
    let mut failures = 0_u32;
    loop {
        let error = match UnixStream::connect(&settings.socket).await {
            Ok(stream) => {
                let synchronized = |runtime: &str| {
                    tracing::info!(%socket, runtime, "connected to NRI");
                    failures = 0;
                    state.send_replace(NriState::Connected(runtime.to_owned()));
                };
                serve(stream, settings, plugin, synchronized).await
            }
            Err(error) => SessionError::Io(error),
        };
        let lost = NriState::Lost(format!("{socket}: {}", causes(&error)));
        if *state.borrow() != lost {
            let error = causes(&error);
            tracing::warn!(%socket, error, "no connection to NRI, retrying with back-off");
            state.send_replace(lost);
        }
        failures = failures.saturating_add(1);
        sleep(backoff(settings.retry_first, settings.retry_most, failures)).await;
    }
}
