//! Thread that waits for NVML events.
//!
//! NVML cannot interrupt a wait, so the thread ends up to one wait late. Waits are short while a GPU is lost: NVML is
//! initialised again soon. The agent's end does not await the thread, which holds only the library.
//!
//! During a wait every other call about event sets spins on its CPU until the wait is over (seen with driver 580). So
//! the thread pauses while GPUs join the set. Their events remain in the driver until it waits again.
//!
//! ```text
//!            order               pause                 the wait is over
//!   Paused ─────────> Waiting ─────────────> Pausing ───────────────────> Paused
//! ```

use std::{
    sync::{
        Arc,
        mpsc::{Receiver, RecvError, Sender, TryRecvError, channel},
    },
    time::Duration,
};

use tokio::sync::mpsc;
use windlass_nvml::{Event, EventSet, NvmlError};

/// Events of one set. The thread ends when this is dropped, or after a failed wait.
pub(super) struct EventWatch {
    received: mpsc::Receiver<News>,
    /// Length of the next waits, or a pause. Closing it ends the thread.
    orders: Sender<Option<Duration>>,
    state: State,
    long_wait: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Paused,
    /// In waits of this length.
    Waiting(Duration),
    /// The last wait is running.
    Pausing,
}

/// News of the thread.
pub(super) enum News {
    Event(Event),
    /// The wait failed.
    Failed(NvmlError),
    /// No wait is running: GPUs can join the set.
    Paused,
}

/// Buffered events; further ones stay in the driver.
const IN_FLIGHT: usize = 256;

/// Length of waits while an end is likely.
const SHORT_WAIT: Duration = Duration::from_millis(500);

// === impl EventWatch ===

impl EventWatch {
    /// Starts the thread, paused.
    pub(super) fn start(events: Arc<EventSet>, long_wait: Duration) -> std::io::Result<Self> {
        let (send, received) = mpsc::channel(IN_FLIGHT);
        let (orders, ordered) = channel();
        std::thread::Builder::new().name("nvml-events".to_owned()).spawn(move || {
            watch(&events, &send, &ordered);
            drop(events);
            // Closing the channel reports that the library is released.
            drop(send);
        })?;
        Ok(Self { received, orders, state: State::Paused, long_wait })
    }

    /// Switches to long waits. A pause comes to its end first.
    pub(super) fn rest(&mut self) {
        self.wait(self.long_wait);
    }

    /// Switches to short waits, likewise.
    pub(super) fn be_ready_to_end(&mut self) {
        self.wait(SHORT_WAIT.min(self.long_wait));
    }

    fn wait(&mut self, length: Duration) {
        let wanted = State::Waiting(length);
        if self.state != State::Pausing && self.state != wanted {
            self.state = wanted;
            // The thread ended after a failed wait.
            let _ = self.orders.send(Some(length));
        }
    }

    /// Pauses after the running wait, with [`News::Paused`].
    pub(super) fn pause(&mut self) {
        if matches!(self.state, State::Waiting(_)) {
            self.state = State::Pausing;
            let _ = self.orders.send(None);
        }
    }

    /// True if no wait is running.
    pub(super) fn is_paused(&self) -> bool {
        self.state == State::Paused
    }

    /// News since the last call, as one batch. Waits forever once the thread ended.
    pub(super) async fn next(&mut self) -> Vec<News> {
        let mut batch = Vec::new();
        if self.received.recv_many(&mut batch, IN_FLIGHT).await == 0 {
            std::future::pending::<()>().await;
        }
        if batch.iter().any(|news| matches!(news, News::Paused)) {
            self.state = State::Paused;
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
fn watch(events: &EventSet, send: &mpsc::Sender<News>, orders: &Receiver<Option<Duration>>) {
    let mut wait = None;
    loop {
        let order = match wait {
            Some(_) => orders.try_recv(),
            None => orders.recv().map_err(|RecvError| TryRecvError::Disconnected),
        };
        let news = match (order, wait) {
            (Ok(ordered), _) => {
                wait = ordered;
                wait.is_none().then_some(News::Paused)
            }
            (Err(TryRecvError::Empty), Some(length)) => match events.wait(length) {
                Ok(event) => event.map(News::Event),
                Err(error) => Some(News::Failed(error)),
            },
            (Err(_), _) => return,
        };
        let failed = matches!(news, Some(News::Failed(_)));
        if news.is_some_and(|news| send.blocking_send(news).is_err()) || failed {
            return;
        }
    }
}
