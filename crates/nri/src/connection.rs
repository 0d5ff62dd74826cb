//! A connection to the runtime that comes back: the runtime may start later than the plugin, and restart.

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
    /// The plugin is not connected, for this reason.
    Lost(String),
    /// The plugin is synchronized with this runtime: its name and version.
    Connected(String),
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
