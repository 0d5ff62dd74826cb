//! Keeps one resource registered with the kubelet: carries out what [`State::next`] decides.

mod state;

use std::{pin::Pin, sync::Arc, time::Duration};

use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use windlass_config::SessionLimits;
use windlass_core::resource::ResourceName;
use windlass_host::{causes, clock::until, deadline};
use windlass_kubelet_api::{
    deviceplugin::{RegisterRequest, VERSION, registration_client::RegistrationClient},
    endpoint::Endpoint,
    socket::SocketPath,
};
use windlass_resources::NodeState;

use self::state::{Input, Outcome, OwnSocket, State};
use super::service::StreamEvent;
use crate::registration::{RegistrationMetrics, Standing};

/// Keeps one resource registered.
pub(super) struct Session {
    pub(super) resource: ResourceName,
    /// The file name of its server's socket.
    pub(super) socket: String,
    pub(super) kubelet: SocketPath,
    pub(super) limits: SessionLimits,
    pub(super) state: watch::Receiver<Arc<NodeState>>,
    pub(super) directory: watch::Receiver<u64>,
    pub(super) streams: mpsc::UnboundedReceiver<StreamEvent>,
    pub(super) metrics: RegistrationMetrics,
}

/// A registration on its way; dropping it ends the call.
type Call = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// Why a registration failed.
#[derive(Debug, thiserror::Error)]
enum RegisterError {
    #[error(transparent)]
    Dial(#[from] windlass_kubelet_api::socket::SocketError),
    #[error("the kubelet refused: {}", .0.message())]
    Refused(#[from] tonic::Status),
    #[error("the kubelet did not answer within {0:?}")]
    Late(Duration),
}

/// Of many failures in a row, one in this many is said: with ten seconds between them, every ten
/// minutes.
const SAID_EVERY: u32 = 60;

// === impl Session ===

impl Session {
    /// Keeps the resource registered until stopped.
    pub(super) async fn run(mut self, endpoint: &mut Endpoint, stop: &CancellationToken) {
        let mut state = State::Starting;
        let mut call = None;
        let mut options = self.options();
        let mut input = self.look(endpoint);
        loop {
            let next = state.next(input, Instant::now(), &self.limits);
            self.enter(state, next, &mut call);
            state = next;
            input = tokio::select! {
                () = stop.cancelled() => return,
                outcome = answer(&mut call) => {
                    self.count(outcome);
                    Input::Answered(outcome)
                }
                Some(event) = self.streams.recv() => Input::Stream(event),
                Ok(()) = self.directory.changed() => self.look(endpoint),
                () = due(state) => Input::Due,
                () = differ(&mut self.state, &self.resource, options) => {
                    options = self.options();
                    Input::OptionsChanged
                }
            };
        }
    }

    /// Looks at both sockets. Ours is put back first: a kubelet that is told of a socket that is not
    /// there waits ten seconds for it.
    fn look(&self, endpoint: &mut Endpoint) -> Input {
        let mut own = OwnSocket::InPlace;
        if !endpoint.is_in_place() {
            own = OwnSocket::Replaced;
            if let Err(error) = endpoint.bind_again() {
                tracing::error!(error = causes(&error), "cannot serve for the moment");
                own = OwnSocket::Missing;
            } else {
                tracing::info!(socket = %endpoint.path(), "socket was deleted, serving on a new one");
            }
        }
        Input::Looked { kubelet: self.kubelet.identity(), own }
    }

    /// What the kubelet is told of the resource when it registers it, as far as it changes.
    fn options(&self) -> bool {
        self.state.borrow().is_handed_over(&self.resource)
    }

    fn count(&self, outcome: Outcome) {
        match outcome {
            Outcome::Accepted => self.metrics.accepted(),
            Outcome::Failed => self.metrics.failed(),
        }
    }

    fn enter(&self, from: State, to: State, call: &mut Option<Call>) {
        if from == to {
            return;
        }
        self.metrics.stands(match to {
            State::Serving { .. } => Standing::Registered,
            _ => Standing::Unregistered,
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
        // An answer to a call from an earlier state would be taken for the answer to the next one.
        // The call in flight goes on while the kubelet already reads the list within it.
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
            endpoint: self.socket.clone(),
            resource_name: self.resource.to_string(),
            options: None,
        }
    }
}

/// The answer to the call, if one is on its way; then it is no longer.
async fn answer(call: &mut Option<Call>) -> Outcome {
    let Some(pending) = call else { return std::future::pending().await };
    let outcome = pending.await;
    *call = None;
    outcome
}

/// Waits until the resource's options are others than those.
async fn differ(state: &mut watch::Receiver<Arc<NodeState>>, resource: &ResourceName, told: bool) {
    let differ = |state: &Arc<NodeState>| {
        // What has no device to give away has nothing to prepare, and nothing to say about it.
        let is_offered = state.offers.get(resource).is_some_and(|offer| offer.allocatable() > 0);
        is_offered && state.is_handed_over(resource) != told
    };
    if state.wait_for(differ).await.is_err() {
        // The reconciler has ended, and so will this.
        std::future::pending::<()>().await;
    }
}

async fn due(state: State) {
    match state.due() {
        Some(time) => until(time).await,
        None => std::future::pending().await,
    }
}

/// One registration.
async fn register(
    kubelet: SocketPath,
    request: RegisterRequest,
    limits: SessionLimits,
    attempt: u32,
) -> Outcome {
    let deadline = limits.register_deadline;
    let call = async {
        let channel = kubelet.dial().await?;
        RegistrationClient::new(channel).register(request).await?;
        Ok(())
    };
    let outcome =
        deadline::timeout(deadline, call).await.unwrap_or(Err(RegisterError::Late(deadline)));
    let Err(error) = outcome else { return Outcome::Accepted };
    let error = causes(&error);
    // The first ones, and then one in a while: a kubelet that is away for a day fills no disk.
    if attempt < 2 || attempt.is_multiple_of(SAID_EVERY) {
        tracing::warn!(error, attempt, "registration failed, trying again");
    }
    Outcome::Failed
}
