//! The thread that waits for the driver's events.
//!
//! NVML offers no way to interrupt a wait, so the thread notices its end up to one wait late. It is
//! not waited for when the agent stops: it holds nothing but the library.

use std::{
    sync::{Arc, mpsc::TryRecvError},
    time::Duration,
};

use tokio::sync::mpsc;
use windlass_nvml::{Event, EventSet, NvmlError};

/// The events of one set; the thread ends when this is dropped, or after a wait that failed.
pub(super) struct EventWatch {
    received: mpsc::Receiver<Result<Event, NvmlError>>,
    stop: std::sync::mpsc::Sender<()>,
}

/// Events in flight between the thread and the source. A storm beyond it waits in the driver.
const IN_FLIGHT: usize = 256;

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

    /// The events since the last call, or why there are none at the moment; a storm is taken in as
    /// one batch. Waits for ever when the thread ended.
    pub(super) async fn next(&mut self) -> Vec<Result<Event, NvmlError>> {
        let mut batch = Vec::new();
        if self.received.recv_many(&mut batch, IN_FLIGHT).await == 0 {
            std::future::pending::<()>().await;
        }
        batch
    }

    /// Tells the thread to end, and blocks until it has let go of the library.
    pub(super) fn end(mut self) {
        drop(self.stop);
        while self.received.blocking_recv().is_some() {}
    }
}

/// Sends each event, until stopped or until a wait fails: a set that cannot be waited for once fails
/// at every wait, and has to be replaced.
fn watch(
    events: &EventSet,
    wait: Duration,
    send: &mpsc::Sender<Result<Event, NvmlError>>,
    stopped: &std::sync::mpsc::Receiver<()>,
) {
    while stopped.try_recv() == Err(TryRecvError::Empty) {
        let outcome = events.wait(wait);
        let failed = outcome.is_err();
        if outcome.transpose().is_some_and(|news| send.blocking_send(news).is_err()) || failed {
            return;
        }
    }
}
