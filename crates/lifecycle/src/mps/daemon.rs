//! Task of one MPS daemon: performs the actions of the states that [`State::next`] returns.

use std::{pin::Pin, sync::Arc, time::Duration};

use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;
use windlass_core::device::DeviceId;
use windlass_host::{causes, clock::wait_until, deadline, or_pending, take_finished};

use super::{
    MpsState,
    env::{DaemonInstance, Env},
    process::Process,
    spec::MpsSpec,
    state::{ActionOutcome, Input, State},
};

/// Task that keeps one device's daemon running while it has a spec.
pub(super) struct Daemon {
    device: DeviceId,
    env: Arc<Env>,
    /// `None` once the daemon is not required.
    spec: watch::Receiver<Option<MpsSpec>>,
    reports: mpsc::UnboundedSender<(DeviceId, MpsState)>,
    /// The daemon's process and compute mode; `None` while a call works on them.
    instance: Option<DaemonInstance>,
    /// Reason of the last failure.
    last_failure: String,
}

/// Running action of a state. An action that changes the instance owns it meanwhile, and returns it.
type Call = Pin<Box<dyn Future<Output = (Option<DaemonInstance>, Result<(), CallError>)> + Send>>;

/// Outcome and reason of a failed call.
type CallError = (ActionOutcome, String);

/// Pause between attempts to set the limits of a daemon that starts.
const START_POLL: Duration = Duration::from_millis(50);

// === impl Daemon ===

impl Daemon {
    pub(super) fn new(
        device: DeviceId,
        env: &Arc<Env>,
        spec: watch::Receiver<Option<MpsSpec>>,
        reports: mpsc::UnboundedSender<(DeviceId, MpsState)>,
    ) -> Self {
        let instance = Some(env.instance(device.clone()));
        Self { device, env: env.clone(), spec, reports, instance, last_failure: String::new() }
    }

    /// Runs until the daemon has no spec and has ended, or until the agent stops. An agent that stops leaves the daemon
    /// running.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        stop.run_until_cancelled(self.supervise_and_stop()).await;
    }

    async fn supervise_and_stop(&mut self) {
        loop {
            if self.spec().is_some() {
                self.supervise().await;
            }
            let mut instance = self.instance.take().expect("no call is running");
            let result = self.env.stop(&mut instance).await;
            self.instance = Some(instance);
            let Err(error) = result else {
                tracing::info!(device = %self.device, "MPS daemon stopped");
                return;
            };
            let (error, retry_in) = (causes(&error), self.env.settings.retry_max);
            tracing::warn!(device = %self.device, error, ?retry_in, "cannot stop MPS daemon");
            tokio::select! {
                Ok(()) = self.spec.changed() => {}
                () = sleep(retry_in) => {}
            }
        }
    }

    /// Follows the state machine until the daemon has no spec.
    async fn supervise(&mut self) {
        let mut state = State::INITIAL;
        let mut call = self.start_action(state);
        loop {
            self.report(state);
            let input = tokio::select! {
                (instance, result) = take_finished(&mut call) => self.finish(instance, result),
                reason = or_pending(wait_exit(&mut self.instance)) => self.handle_exit(&reason),
                Ok(()) = self.spec.changed() => {
                    if self.spec().is_none() {
                        break;
                    }
                    Input::SpecChanged
                }
                () = or_pending(state.due().map(wait_until)) => Input::TimerElapsed,
            };
            let next = state.next(input, Instant::now(), &self.env.settings);
            if next != state {
                self.log(state, next);
                call = self.start_action(next);
            }
            state = next;
        }
        // A running call may be starting the daemon, so the instance is awaited.
        if self.instance.is_none() {
            self.instance = take_finished(&mut call).await.0;
        }
    }

    /// Starts the action of a state that was entered; `None` for a state without one.
    fn start_action(&mut self, state: State) -> Option<Call> {
        let env = self.env.clone();
        let device = self.device.clone();
        match state {
            State::Ready { .. } | State::KeepingLimits { .. } | State::Waiting { .. } => None,
            State::Preparing { .. } => {
                let spec = self.spec()?;
                let mut instance = self.instance.take()?;
                Some(Box::pin(async move {
                    let result = env.prepare(&mut instance, &spec).await;
                    (Some(instance), result.map_err(call_error))
                }))
            }
            State::SettingLimits { .. } => {
                let spec = self.spec()?;
                Some(Box::pin(async move { (None, apply_limits(&env, &device, &spec).await) }))
            }
            State::Checking { .. } => {
                Some(Box::pin(async move { (None, check(&env, &device).await) }))
            }
            State::Ending { .. } => {
                let mut instance = self.instance.take()?;
                Some(Box::pin(async move {
                    let result = env.end_process(&mut instance).await;
                    (Some(instance), result.map_err(call_error))
                }))
            }
        }
    }

    fn finish(&mut self, instance: Option<DaemonInstance>, result: Result<(), CallError>) -> Input {
        self.instance = instance.or(self.instance.take());
        let Err((outcome, reason)) = result else { return Input::Done(ActionOutcome::Succeeded) };
        self.last_failure = reason;
        let process = self.instance.as_ref().and_then(|instance| instance.process.as_ref());
        if process.is_some_and(|process| !process.is_alive()) {
            return self.handle_exit("the daemon is gone");
        }
        Input::Done(outcome)
    }

    fn handle_exit(&mut self, reason: &str) -> Input {
        let line = self.env.last_output(&self.device);
        self.last_failure =
            line.map_or_else(|| reason.to_owned(), |line| format!("{reason}: {line}"));
        Input::Exited
    }

    fn spec(&self) -> Option<MpsSpec> {
        self.spec.borrow().clone()
    }

    fn report(&self, state: State) {
        let mps_state = if state.answered_last_check() {
            MpsState::Ready
        } else if state.is_first_attempt() {
            MpsState::Starting
        } else {
            MpsState::Failed(self.last_failure.clone())
        };
        // The receiver is dropped only when the agent stops.
        let _ = self.reports.send((self.device.clone(), mps_state));
    }

    fn log(&self, from: State, to: State) {
        let (device, error) = (&self.device, &self.last_failure);
        match to {
            State::Ready { missed: 0, .. } if !from.answered_last_check() => {
                tracing::info!(%device, "MPS daemon ready");
            }
            State::Ready { missed: 1.., .. } => {
                tracing::warn!(%device, error, "MPS daemon does not answer, device withheld");
            }
            State::KeepingLimits { .. } => {
                tracing::warn!(%device, error, "MPS daemon keeps its old limits: correct the sharing");
            }
            State::Ending { .. } => {
                tracing::warn!(%device, error, "MPS daemon failed, restarting it");
            }
            _ => tracing::debug!(%device, ?from, ?to, "MPS daemon state changed"),
        }
    }
}

/// Sets the limits, with retries: a daemon that was just started may not answer yet.
async fn apply_limits(env: &Env, device: &DeviceId, spec: &MpsSpec) -> Result<(), CallError> {
    let limits =
        spec.client_limits().map_err(|error| (ActionOutcome::SpecImpossible, error.to_string()))?;
    let program = env.program().map_err(call_error)?;
    let (folder, settings) = (env.folders.daemon_folder(device), &env.settings);
    let set_limits = deadline::cancel_after(settings.start_deadline, async |deadline_passed| {
        loop {
            let result = program.set_limits(&folder, limits, settings.answer_deadline).await;
            if result.is_ok() || deadline_passed.is_cancelled() {
                return result;
            }
            sleep(START_POLL).await;
        }
    });
    set_limits.await.map_err(call_error)
}

async fn check(env: &Env, device: &DeviceId) -> Result<(), CallError> {
    let program = env.program().map_err(call_error)?;
    let result =
        program.check(&env.folders.daemon_folder(device), env.settings.answer_deadline).await;
    result.map_err(call_error)
}

fn call_error(error: impl std::error::Error) -> CallError {
    (ActionOutcome::Failed, causes(&error))
}

/// Future of the end of the daemon's process, if there is a process.
fn wait_exit(instance: &mut Option<DaemonInstance>) -> Option<impl Future<Output = String>> {
    instance.as_mut()?.process.as_mut().map(Process::wait_exit)
}
