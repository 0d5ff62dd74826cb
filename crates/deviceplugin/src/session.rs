//! Kubelet session of one resource: performs the transitions that [`State::next`] decides.

mod state;

use std::{pin::Pin, sync::Arc, time::Duration};

use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use windlass_config::KubeletLimits;
use windlass_core::resource::ResourceName;
use windlass_host::{causes, clock::wait_until, deadline, or_pending, take_finished, watch::until};
use windlass_kubelet_api::{
    deviceplugin::{RegisterRequest, VERSION, registration_client::RegistrationClient},
    endpoint::Endpoint,
    socket::SocketPath,
};
use windlass_resources::NodeState;

use self::state::{Input, OwnSocket, RegistrationOutcome, State};
use super::service::StreamEvent;
use crate::registration::{RegistrationMetrics, RegistrationState};

/// Task that keeps one resource registered with the kubelet.
pub(super) struct Session {
    pub(super) resource: ResourceName,
    /// File name of the resource's socket.
    pub(super) socket_name: String,
    pub(super) kubelet: SocketPath,
    pub(super) limits: KubeletLimits,
    pub(super) state: watch::Receiver<Arc<NodeState>>,
    pub(super) directory: watch::Receiver<u64>,
    pub(super) streams: mpsc::UnboundedReceiver<StreamEvent>,
    pub(super) metrics: RegistrationMetrics,
}

/// Registration in progress; dropping it cancels the call.
type Call = Pin<Box<dyn Future<Output = RegistrationOutcome> + Send>>;

/// Failed registration.
#[derive(Debug, thiserror::Error)]
enum RegisterError {
    #[error(transparent)]
    Connect(#[from] windlass_kubelet_api::socket::SocketError),
    #[error("the kubelet refused: {}", .0.message())]
    Refused(#[from] tonic::Status),
    #[error("the kubelet did not answer within {0:?}")]
    Timeout(Duration),
}

/// Log interval of repeated failures: with ten seconds between attempts, one entry every ten minutes.
const ATTEMPTS_PER_LOG: u32 = 60;

// === impl Session ===

impl Session {
    /// Keeps the resource registered until stopped.
    pub(super) async fn run(mut self, endpoint: &mut Endpoint, stop: &CancellationToken) {
        let mut state = State::Starting;
        let mut call = None;
        let mut pre_start_required = self.pre_start_required();
        let mut input = self.check(endpoint);
        loop {
            let next = state.next(input, Instant::now(), &self.limits);
            self.enter(state, next, &mut call);
            state = next;
            input = tokio::select! {
                () = stop.cancelled() => return,
                outcome = take_finished(&mut call) => {
                    self.count_outcome(outcome);
                    Input::Answered(outcome)
                }
                Some(event) = self.streams.recv() => Input::Stream(event),
                Ok(()) = self.directory.changed() => self.check(endpoint),
                () = or_pending(state.due().map(wait_until)) => Input::TimerElapsed,
                () = options_changed(&mut self.state, &self.resource, pre_start_required) => {
                    pre_start_required = self.pre_start_required();
                    Input::OptionsChanged
                }
            };
        }
    }

    /// Checks both sockets. The resource's own is bound first: the kubelet waits ten seconds for a registered socket
    /// that is missing.
    fn check(&self, endpoint: &mut Endpoint) -> Input {
        let mut own = OwnSocket::Bound;
        if !endpoint.is_in_place() {
            own = OwnSocket::Replaced;
            if let Err(error) = endpoint.rebind() {
                tracing::error!(error = causes(&error), "socket not bound, trying again");
                own = OwnSocket::Missing;
            } else {
                tracing::info!(socket = %endpoint.path(), "socket was deleted, serving on a new one");
            }
        }
        Input::Checked { kubelet: self.kubelet.identity(), own }
    }

    /// The registration option that can change: `pre_start_required`.
    fn pre_start_required(&self) -> bool {
        self.state.borrow().needs_pre_start(&self.resource)
    }

    fn count_outcome(&self, outcome: RegistrationOutcome) {
        match outcome {
            RegistrationOutcome::Accepted => self.metrics.count_accepted(),
            RegistrationOutcome::Failed => self.metrics.count_failed(),
        }
    }

    fn enter(&self, from: State, to: State, call: &mut Option<Call>) {
        if from == to {
            return;
        }
        self.metrics.set(match to {
            State::Serving { .. } => RegistrationState::Registered,
            _ => RegistrationState::Unregistered,
        });
        match to {
            State::NoKubelet if from == State::Starting => {
                tracing::warn!(
                    socket = %self.kubelet,
                    "no kubelet to register with, waiting for its socket: is the kubelet running? \
                     --kubelet-dir names another folder"
                );
            }
            State::NoKubelet => {
                tracing::info!(
                    was = from.name(),
                    "no kubelet to register with, waiting for its socket"
                );
            }
            State::Waiting { .. } if matches!(from, State::Serving { .. }) => {
                tracing::info!("the kubelet no longer reads the device list, registering again");
            }
            _ => tracing::debug!(from = from.name(), to = to.name(), "session"),
        }
        if matches!(to, State::Serving { .. }) && !matches!(from, State::Serving { .. }) {
            tracing::info!("registered, the kubelet reads the device list");
        }
        // Cancels the call, so that its late answer is not taken for that of the next one. A kubelet may open its
        // stream before it answers, so the call continues while Serving.
        if !matches!(to, State::Registering { .. } | State::Serving { .. }) {
            *call = None;
        }
        if let State::Registering { attempt, .. } = to {
            let request = self.request();
            let registration = register(self.kubelet.clone(), request, self.limits, attempt);
            *call = Some(Box::pin(registration));
        }
    }

    fn request(&self) -> RegisterRequest {
        RegisterRequest {
            version: VERSION.to_owned(),
            endpoint: self.socket_name.clone(),
            resource_name: self.resource.to_string(),
            options: None,
        }
    }
}

/// Waits until the resource's options differ from `registered`.
async fn options_changed(
    state: &mut watch::Receiver<Arc<NodeState>>,
    resource: &ResourceName,
    registered: bool,
) {
    let options_changed = |state: &Arc<NodeState>| {
        // Without an allocatable device there is nothing to prepare.
        let is_offered =
            state.offers.get(resource).is_some_and(|offer| offer.allocatable_count() > 0);
        is_offered && state.needs_pre_start(resource) != registered
    };
    until(state, options_changed).await;
}

async fn register(
    kubelet: SocketPath,
    request: RegisterRequest,
    limits: KubeletLimits,
    attempt: u32,
) -> RegistrationOutcome {
    let deadline = limits.register_deadline;
    let call = async {
        let channel = kubelet.dial().await?;
        RegistrationClient::new(channel).register(request).await?;
        Ok(())
    };
    let outcome =
        deadline::timeout(deadline, call).await.unwrap_or(Err(RegisterError::Timeout(deadline)));
    let Err(error) = outcome else { return RegistrationOutcome::Accepted };
    let error = causes(&error);
    // Logs the first failures, then every `ATTEMPTS_PER_LOG`th: a long absence must not fill the disk.
    if attempt < 2 || attempt.is_multiple_of(ATTEMPTS_PER_LOG) {
        tracing::warn!(error, attempt, "registration failed, trying again");
    }
    RegistrationOutcome::Failed
}
