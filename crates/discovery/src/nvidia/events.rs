//! Thread that waits for NVML events.
//!
//! NVML cannot interrupt a wait, so the thread ends up to one wait late. Waits are short until every GPU was
//! seen, and while one is lost: NVML is then initialised again soon. The agent's end does not await the
//! thread, which holds only the library.

use std::{
    sync::{
        Arc,
        mpsc::{Receiver, Sender, TryRecvError, channel},
    },
    time::Duration,
};

use tokio::sync::mpsc;
use windlass_nvml::{Event, EventSet, NvmlError};

/// Events of one set. The thread ends when this is dropped, or after a failed wait.
pub(super) struct EventWatch {
    received: mpsc::Receiver<Result<Event, NvmlError>>,
    /// Length of the next waits; closing it ends the thread.
    orders: Sender<Duration>,
    /// Current length of waits.
    wait: Duration,
    long_wait: Duration,
}

/// Buffered events; further ones stay in the driver.
const IN_FLIGHT: usize = 256;

/// Length of waits while an end is likely.
const SHORT_WAIT: Duration = Duration::from_millis(500);

// === impl EventWatch ===

impl EventWatch {
    /// Starts the thread with short waits of at most `long_wait`.
    pub(super) fn start(events: Arc<EventSet>, long_wait: Duration) -> std::io::Result<Self> {
        let (send, received) = mpsc::channel(IN_FLIGHT);
        let (orders, ordered) = channel();
        let wait = SHORT_WAIT.min(long_wait);
        std::thread::Builder::new().name("nvml-events".to_owned()).spawn(move || {
            watch(&events, wait, &send, &ordered);
            drop(events);
            // Closing the channel reports that the library is released.
            drop(send);
        })?;
        Ok(Self { received, orders, wait, long_wait })
    }

    /// Switches to long waits.
    pub(super) fn rest(&mut self) {
        self.order(self.long_wait);
    }

    /// Switches to short waits.
    pub(super) fn be_ready_to_end(&mut self) {
        self.order(SHORT_WAIT.min(self.long_wait));
    }

    fn order(&mut self, wait: Duration) {
        if std::mem::replace(&mut self.wait, wait) != wait {
            // The thread ended after a failed wait.
            let _ = self.orders.send(wait);
        }
    }

    /// Events since the last call, as one batch, or the error of the wait. Waits forever once the thread
    /// ended.
    pub(super) async fn next(&mut self) -> Vec<Result<Event, NvmlError>> {
        let mut batch = Vec::new();
        if self.received.recv_many(&mut batch, IN_FLIGHT).await == 0 {
            std::future::pending::<()>().await;
        }
        batch
    }

    /// Ends the thread and blocks until it released the library.
    pub(super) fn end(mut self) {
        drop(self.orders);
        while self.received.blocking_recv().is_some() {}
    }
}

/// Sends events until stopped, or until a wait fails: a broken set fails at every wait and needs replacement.
fn watch(
    events: &EventSet,
    mut wait: Duration,
    send: &mpsc::Sender<Result<Event, NvmlError>>,
    orders: &Receiver<Duration>,
) {
    loop {
        match orders.try_recv() {
            Ok(ordered) => wait = ordered,
            Err(TryRecvError::Disconnected) => return,
            Err(TryRecvError::Empty) => {
                let outcome = events.wait(wait);
                let failed = outcome.is_err();
                if outcome.transpose().is_some_and(|news| send.blocking_send(news).is_err())
                    || failed
                {
                    return;
                }
            }
        }
    }
}
