//! Keeps one device's daemon running: carries out what [`State::next`] decides.

use std::{pin::Pin, sync::Arc, time::Duration};

use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;
use windlass_core::device::DeviceId;
use windlass_host::{causes, clock::until, deadline};

use super::{
    MpsState,
    ground::{Ground, Held},
    state::{Input, Outcome, State},
    want::MpsWant,
};

/// Keeps one device's daemon running while it is wanted.
pub(super) struct Daemon {
    device: DeviceId,
    ground: Arc<Ground>,
    /// `None` when it is no longer wanted.
    want: watch::Receiver<Option<MpsWant>>,
    reports: mpsc::UnboundedSender<(DeviceId, MpsState)>,
    /// What there is of it, unless a call has it.
    held: Option<Held>,
    /// Why it last failed.
    why: String,
}

/// What a state does. Calls that change what is held take it along and bring it back.
type Call = Pin<Box<dyn Future<Output = (Option<Held>, Result<(), Failure>)> + Send>>;

/// Why a call failed, and what that means.
type Failure = (Outcome, String);

/// How often a daemon that has just been started is asked.
const START_LOOK: Duration = Duration::from_millis(50);

// === impl Daemon ===

impl Daemon {
    pub(super) fn new(
        device: DeviceId,
        ground: &Arc<Ground>,
        want: watch::Receiver<Option<MpsWant>>,
        reports: mpsc::UnboundedSender<(DeviceId, MpsState)>,
    ) -> Self {
        let held = Some(ground.hold(device.clone()));
        Self { device, ground: ground.clone(), want, reports, held, why: String::new() }
    }

    /// Runs until the daemon is no longer wanted and nothing is left of it, or until the agent stops,
    /// which leaves the daemon as it is.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.live_and_end() => {}
        }
    }

    async fn live_and_end(&mut self) {
        loop {
            if self.wanted().is_some() {
                self.live().await;
            }
            let mut held = self.held.take().expect("no call is on its way");
            let stopped = self.ground.stop(&mut held).await;
            self.held = Some(held);
            let Err(error) = stopped else {
                tracing::info!(device = %self.device, "MPS daemon stopped");
                return;
            };
            let (error, again) = (causes(&error), self.ground.settings.retry_most);
            tracing::warn!(device = %self.device, error, ?again, "cannot stop the MPS daemon");
            tokio::select! {
                Ok(()) = self.want.changed() => {}
                () = sleep(again) => {}
            }
        }
    }

    /// Lives until it is no longer wanted.
    async fn live(&mut self) {
        let mut state = State::FIRST;
        let mut call = self.act(state);
        loop {
            self.report(state);
            let input = tokio::select! {
                (held, result) = answer(&mut call) => self.take(held, result),
                why = exited(&mut self.held) => self.take_exit(&why),
                Ok(()) = self.want.changed() => {
                    if self.wanted().is_none() {
                        break;
                    }
                    Input::Changed
                }
                () = due(state) => Input::Due,
            };
            let next = state.next(input, Instant::now(), &self.ground.settings);
            if next != state {
                self.say(state, next);
                call = self.act(next);
            }
            state = next;
        }
        // One that is just being started must not be lost.
        if self.held.is_none() {
            self.held = answer(&mut call).await.0;
        }
    }

    /// What a state does on being entered.
    fn act(&mut self, state: State) -> Option<Call> {
        let ground = self.ground.clone();
        let device = self.device.clone();
        match state {
            State::Ready { .. } | State::Kept { .. } | State::Waiting { .. } => None,
            State::Preparing { .. } => {
                let want = self.wanted()?;
                let mut held = self.held.take()?;
                Some(Box::pin(async move {
                    let done = ground.prepare(&mut held, &want).await;
                    (Some(held), done.map_err(failure))
                }))
            }
            State::Settling { .. } => {
                let want = self.wanted()?;
                Some(Box::pin(async move { (None, settle(&ground, &device, &want).await) }))
            }
            State::Asking { .. } => {
                Some(Box::pin(async move { (None, ping(&ground, &device).await) }))
            }
            State::Ending { .. } => {
                let mut held = self.held.take()?;
                Some(Box::pin(async move {
                    let done = ground.end(&mut held).await;
                    (Some(held), done.map_err(failure))
                }))
            }
        }
    }

    fn take(&mut self, held: Option<Held>, result: Result<(), Failure>) -> Input {
        self.held = held.or(self.held.take());
        let Err((outcome, why)) = result else { return Input::Done(Outcome::Well) };
        self.why = why;
        let process = self.held.as_ref().and_then(|held| held.process.as_ref());
        if process.is_some_and(|process| !process.is_alive()) {
            return self.take_exit("the daemon is gone");
        }
        Input::Done(outcome)
    }

    fn take_exit(&mut self, why: &str) -> Input {
        let words = self.ground.last_words(&self.device);
        self.why = words.map_or_else(|| why.to_owned(), |words| format!("{why}: {words}"));
        Input::Exited
    }

    fn wanted(&self) -> Option<MpsWant> {
        self.want.borrow().clone()
    }

    fn report(&self, state: State) {
        let report = if state.answers() {
            MpsState::Ready
        } else if state.is_first_attempt() {
            MpsState::Starting
        } else {
            MpsState::Failed(self.why.clone())
        };
        // No one is left to tell at the agent's end only.
        let _ = self.reports.send((self.device.clone(), report));
    }

    fn say(&self, from: State, to: State) {
        let (device, why) = (&self.device, &self.why);
        match to {
            State::Ready { missed: 0, .. } if !from.answers() => {
                tracing::info!(%device, "MPS daemon ready");
            }
            State::Ready { missed: 1.., .. } => {
                tracing::warn!(%device, why, "MPS daemon does not answer");
            }
            State::Kept { .. } => tracing::warn!(%device, why, "MPS daemon keeps its old limits"),
            State::Ending { .. } => tracing::warn!(%device, why, "MPS daemon failed"),
            _ => tracing::debug!(%device, ?from, ?to, "MPS daemon"),
        }
    }
}

/// Sets the limits. A daemon that has just been started is not there at once.
async fn settle(ground: &Ground, device: &DeviceId, want: &MpsWant) -> Result<(), Failure> {
    let share = want.share().map_err(|error| (Outcome::Impossible, error.to_string()))?;
    let program = ground.program().map_err(failure)?;
    let (place, settings) = (ground.places.of(device), &ground.settings);
    let limited = deadline::beside(settings.start_deadline, async |over| {
        loop {
            let limited = program.limit(&place, share, settings.answer_deadline).await;
            if limited.is_ok() || over.is_cancelled() {
                return limited;
            }
            sleep(START_LOOK).await;
        }
    });
    limited.await.map_err(failure)
}

async fn ping(ground: &Ground, device: &DeviceId) -> Result<(), Failure> {
    let program = ground.program().map_err(failure)?;
    let asked = program.ping(&ground.places.of(device), ground.settings.answer_deadline).await;
    asked.map_err(failure)
}

fn failure(error: impl std::error::Error) -> Failure {
    (Outcome::Badly, causes(&error))
}

/// The answer to the call, if one is on its way; then it is no longer.
async fn answer(call: &mut Option<Call>) -> (Option<Held>, Result<(), Failure>) {
    let Some(pending) = call else { return std::future::pending().await };
    let answer = pending.await;
    *call = None;
    answer
}

/// The end of the process, if there is one.
async fn exited(held: &mut Option<Held>) -> String {
    match held.as_mut().and_then(|held| held.process.as_mut()) {
        Some(process) => process.exited().await,
        None => std::future::pending().await,
    }
}

async fn due(state: State) {
    match state.due() {
        Some(time) => until(time).await,
        None => std::future::pending().await,
    }
}
