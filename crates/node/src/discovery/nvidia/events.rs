//! The thread that waits for the driver's events.
//!
//! NVML offers no way to interrupt a wait, so the thread notices its end up to one wait late. It is
//! not waited for when the agent stops: it holds nothing but the library.

use std::{
    sync::{Arc, mpsc::RecvTimeoutError},
    time::Duration,
};

use tokio::sync::mpsc;
use windlass_nvml::{Event, EventSet, NvmlError};

/// The events of one initialisation of NVML; the thread ends when this is dropped.
pub(super) struct EventWatch {
    received: mpsc::Receiver<Result<Event, NvmlError>>,
    stop: std::sync::mpsc::Sender<()>,
}

/// Events in flight between the thread and the source. A storm beyond it waits in the driver.
const IN_FLIGHT: usize = 256;

/// A wait that failed is tried again after this, so that a broken driver is not asked in a loop.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

// === impl EventWatch ===

impl EventWatch {
    /// Starts the thread; each of its waits lasts at most `wait`.
    pub(super) fn start(events: Arc<EventSet>, wait: Duration) -> std::io::Result<Self> {
        let (send, received) = mpsc::channel(IN_FLIGHT);
        let (stop, stopped) = std::sync::mpsc::channel();
        std::thread::Builder::new().name("nvml-events".to_owned()).spawn(move || {
            watch(&events, wait, &send, &stopped);
            drop(events);
            // Closes the channel, which tells that the library is let go of.
            drop(send);
        })?;
        Ok(Self { received, stop })
    }

    /// The next event, or why there are none at the moment. `None` when the thread ended.
    pub(super) async fn next(&mut self) -> Option<Result<Event, NvmlError>> {
        self.received.recv().await
    }

    /// Tells the thread to end, and blocks until it has let go of the library.
    pub(super) fn end(mut self) {
        drop(self.stop);
        while self.received.blocking_recv().is_some() {}
    }
}

fn watch(
    events: &EventSet,
    wait: Duration,
    send: &mpsc::Sender<Result<Event, NvmlError>>,
    stopped: &std::sync::mpsc::Receiver<()>,
) {
    let mut pause = Duration::ZERO;
    while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        let outcome = events.wait(wait);
        pause = if outcome.is_err() { AFTER_FAILURE } else { Duration::ZERO };
        if let Some(news) = outcome.transpose()
            && send.blocking_send(news).is_err()
        {
            return;
        }
    }
}
