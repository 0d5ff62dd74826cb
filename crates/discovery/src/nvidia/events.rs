//! The thread that waits for the driver's events.
//!
//! NVML offers no way to interrupt a wait, so the thread notices its end up to one wait late. Waits are
//! short until every GPU was seen, and while one is lost: NVML is then about to be initialised anew. The
//! thread is not waited for when the agent stops: it holds nothing but the library.

use std::{
    sync::{
        Arc,
        mpsc::{Receiver, Sender, TryRecvError, channel},
    },
    time::Duration,
};

use tokio::sync::mpsc;
use windlass_nvml::{Event, EventSet, NvmlError};

/// The events of one set; the thread ends when this is dropped, or after a wait that failed.
pub(super) struct EventWatch {
    received: mpsc::Receiver<Result<Event, NvmlError>>,
    /// How long waits are to be from now on; closed, it ends the thread.
    orders: Sender<Duration>,
    /// How long they are, as far as it was told, and when nothing calls for an end.
    wait: Duration,
    long_wait: Duration,
}

/// Events in flight between the thread and the source. A storm beyond it waits in the driver.
const IN_FLIGHT: usize = 256;

/// How long a wait lasts while the end may come soon.
const SHORT_WAIT: Duration = Duration::from_millis(500);

// === impl EventWatch ===

impl EventWatch {
    /// Starts the thread, with short waits; none is longer than `long_wait`.
    pub(super) fn start(events: Arc<EventSet>, long_wait: Duration) -> std::io::Result<Self> {
        let (send, received) = mpsc::channel(IN_FLIGHT);
        let (orders, ordered) = channel();
        let wait = SHORT_WAIT.min(long_wait);
        std::thread::Builder::new().name("nvml-events".to_owned()).spawn(move || {
            watch(&events, wait, &send, &ordered);
            drop(events);
            // Closes the channel, which tells that the library is let go of.
            drop(send);
        })?;
        Ok(Self { received, orders, wait, long_wait })
    }

    /// Nothing calls for an end: waits are long from the next on.
    pub(super) fn rest(&mut self) {
        self.order(self.long_wait);
    }

    /// The end may come soon: waits are short again.
    pub(super) fn be_ready_to_end(&mut self) {
        self.order(SHORT_WAIT.min(self.long_wait));
    }

    fn order(&mut self, wait: Duration) {
        if std::mem::replace(&mut self.wait, wait) != wait {
            // A thread that ended after a wait that failed takes no orders.
            let _ = self.orders.send(wait);
        }
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
        drop(self.orders);
        while self.received.blocking_recv().is_some() {}
    }
}

/// Sends each event, until stopped or until a wait fails: a set that cannot be waited for once fails
/// at every wait, and has to be replaced.
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
