//! Reconnecting client of the runtime. The runtime may start later than the plugin, or restart.

use tokio::{net::UnixStream, sync::watch, time::sleep};
use tokio_util::sync::CancellationToken;
use windlass_host::{backoff::backoff, causes};

use crate::{
    Plugin,
    session::{SessionError, serve},
    settings::NriSettings,
};

/// State of the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NriState {
    /// The plugin is not connected; contains the reason.
    Disconnected(String),
    /// The plugin is synchronized; contains the name and version of the runtime.
    Connected(String),
}

// === impl NriState ===

impl Default for NriState {
    fn default() -> Self {
        Self::Disconnected("no connection attempt yet".to_owned())
    }
}

/// Keeps the plugin connected until stopped, and publishes the state of the connection.
pub async fn run<P: Plugin>(
    settings: NriSettings,
    mut plugin: P,
    state: watch::Sender<NriState>,
    stop: CancellationToken,
) {
    let client = Box::pin(reconnect(&settings, &mut plugin, &state));
    stop.run_until_cancelled(client).await;
}

async fn reconnect<P: Plugin>(
    settings: &NriSettings,
    plugin: &mut P,
    state: &watch::Sender<NriState>,
) {
    let socket = settings.socket.display();
    let mut failures = 0_u32;
    loop {
        let error = match UnixStream::connect(&settings.socket).await {
            Ok(stream) => {
                let on_synchronized = |runtime: &str| {
                    tracing::info!(%socket, runtime, "connected to NRI");
                    failures = 0;
                    state.send_replace(NriState::Connected(runtime.to_owned()));
                };
                serve(stream, settings, plugin, on_synchronized).await
            }
            Err(error) => SessionError::Io(error),
        };
        let disconnected = NriState::Disconnected(format!("{socket}: {}", causes(&error)));
        if *state.borrow() != disconnected {
            let error = causes(&error);
            tracing::warn!(%socket, error, "no connection to NRI, retrying with back-off");
            state.send_replace(disconnected);
        }
        failures = failures.saturating_add(1);
        sleep(backoff(settings.retry_min, settings.retry_max, failures)).await;
    }
}
