//! Thread that waits for NVML events.
//!
//! NVML cannot interrupt a wait, so the thread ends up to one wait after the request. Waits are short while a GPU is
//! lost, because NVML is then initialised again soon. A stopping agent does not wait for the thread, which holds only
//! the library.
//!
//! During a wait every other call about event sets spins on its CPU until the wait is over (seen with driver 580). So
//! the thread pauses while GPUs join the set. Events remain in the driver until the thread waits again.
//!
//! ```text
//!             wait               pause                 the wait is over
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

/// Handle of the thread that waits for events of one set. The thread ends when the handle is dropped, or after a
/// failed wait.
pub(super) struct EventWatch {
    messages: mpsc::Receiver<EventMessage>,
    /// Commands to the thread: length of the next waits, or `None` for a pause. Closing the channel ends the thread.
    commands: Sender<Option<Duration>>,
    state: WaitState,
    long_wait: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitState {
    Paused,
    /// Waits of this length follow each other.
    Waiting(Duration),
    /// The last wait is running.
    Pausing,
}

/// Message of the thread.
pub(super) enum EventMessage {
    Event(Event),
    /// The wait failed.
    Failed(NvmlError),
    /// No wait is running: GPUs can join the set.
    Paused,
}

/// Maximum number of buffered messages; further events stay in the driver.
const MAX_BUFFERED: usize = 256;

/// Length of waits while a GPU is lost, so that the thread can end soon.
const SHORT_WAIT: Duration = Duration::from_millis(500);

// === impl EventWatch ===

impl EventWatch {
    /// Starts the thread, paused.
    pub(super) fn start(events: Arc<EventSet>, long_wait: Duration) -> std::io::Result<Self> {
        let (sender, messages) = mpsc::channel(MAX_BUFFERED);
        let (commands, command_receiver) = channel();
        std::thread::Builder::new().name("nvml-events".to_owned()).spawn(move || {
            watch(&events, &sender, &command_receiver);
            drop(events);
            // Closing the channel reports that the library is released.
            drop(sender);
        })?;
        Ok(Self { messages, commands, state: WaitState::Paused, long_wait })
    }

    /// Switches to long waits, unless a pause is about to begin.
    pub(super) fn wait_long(&mut self) {
        self.wait(self.long_wait);
    }

    /// Switches to short waits, unless a pause is about to begin.
    pub(super) fn wait_short(&mut self) {
        self.wait(SHORT_WAIT.min(self.long_wait));
    }

    fn wait(&mut self, length: Duration) {
        let next = WaitState::Waiting(length);
        if self.state != WaitState::Pausing && self.state != next {
            self.state = next;
            // Sending fails if the thread has ended after a failed wait.
            let _ = self.commands.send(Some(length));
        }
    }

    /// Pauses the thread after the running wait. The thread then sends [`EventMessage::Paused`].
    pub(super) fn pause(&mut self) {
        if matches!(self.state, WaitState::Waiting(_)) {
            self.state = WaitState::Pausing;
            let _ = self.commands.send(None);
        }
    }

    /// True if no wait is running.
    pub(super) fn is_paused(&self) -> bool {
        self.state == WaitState::Paused
    }

    /// Waits for messages and returns them as one batch. Waits forever after the end of the thread.
    pub(super) async fn next(&mut self) -> Vec<EventMessage> {
        let mut batch = Vec::new();
        if self.messages.recv_many(&mut batch, MAX_BUFFERED).await == 0 {
            std::future::pending::<()>().await;
        }
        if batch.iter().any(|message| matches!(message, EventMessage::Paused)) {
            self.state = WaitState::Paused;
        }
        batch
    }

    /// Ends the thread and blocks until the thread has released the library.
    pub(super) fn join(mut self) {
        drop(self.commands);
        while self.messages.blocking_recv().is_some() {}
    }
}

/// Sends messages until stopped, or until a wait fails. After a failed wait every further wait of the set fails, so the
/// connection replaces the set.
fn watch(
    events: &EventSet,
    sender: &mpsc::Sender<EventMessage>,
    commands: &Receiver<Option<Duration>>,
) {
    let mut wait_length = None;
    loop {
        let command = match wait_length {
            Some(_) => commands.try_recv(),
            None => commands.recv().map_err(|RecvError| TryRecvError::Disconnected),
        };
        let message = match (command, wait_length) {
            (Ok(next), _) => {
                wait_length = next;
                wait_length.is_none().then_some(EventMessage::Paused)
            }
            (Err(TryRecvError::Empty), Some(length)) => match events.wait(length) {
                Ok(event) => event.map(EventMessage::Event),
                Err(error) => Some(EventMessage::Failed(error)),
            },
            (Err(_), _) => return,
        };
        let is_failed = matches!(message, Some(EventMessage::Failed(_)));
        if message.is_some_and(|message| sender.blocking_send(message).is_err()) || is_failed {
            return;
        }
    }
}
