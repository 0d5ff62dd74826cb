//! A resource's life with the kubelet, as one state machine.
//!
//! ```text
//!                    kubelet.sock is there             accepted            device list asked for
//!   NoKubelet ───> Waiting ───────────> Registering ───────────> Registered ───────────> Serving
//!       ^            ^   after a while       │                       │                      │
//!       │            │         refused, late │       nobody asked    │   a stream ended,    │
//!       │            └───────────────────────┴───────────────────────┴── sockets changed ───┘
//!       └── kubelet.sock is gone (from every state)
//! ```
//!
//! Three inputs move it: a look at the two sockets (after a notice from the directory, or regularly),
//! the device list streams, and the clock. [`State::next`] is the whole of the decision; the rest of
//! the file carries it out.
//!
//! Registering again is no heartbeat: each registration replaces the kubelet's connection. It happens
//! when a stream of ours ends, even though kubelet.sock is unchanged, because a kubelet up to 1.36
//! drops the newest connection when any older stream ends (kubelet reference, trap 1).

use std::{pin::Pin, time::Duration};

use tokio::{
    sync::{mpsc, watch},
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;
use windlass_core::resource::ResourceName;
use windlass_kubelet_api::{
    deviceplugin::{RegisterRequest, VERSION, registration_client::RegistrationClient},
    socket::{SocketIdentity, SocketPath},
};

use super::{endpoint::Endpoint, service::StreamEvent};
use crate::{clock::until, config::SessionLimits};

/// Keeps one resource registered.
pub(super) struct Session {
    pub(super) resource: ResourceName,
    pub(super) kubelet: SocketPath,
    pub(super) limits: SessionLimits,
    pub(super) directory: watch::Receiver<u64>,
    pub(super) streams: mpsc::UnboundedReceiver<StreamEvent>,
}

/// Where the session stands. `kubelet` is the socket that the state is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// There is no kubelet.sock.
    NoKubelet,
    /// It will register at that time; `attempt` counts the failures in a row.
    Waiting { kubelet: SocketIdentity, until: Instant, attempt: u32 },
    /// The call is on its way. The kubelet asks for our options before it answers.
    Registering { kubelet: SocketIdentity, attempt: u32 },
    /// The kubelet accepted, and should ask for the device list by that time.
    Registered { kubelet: SocketIdentity, until: Instant, attempt: u32 },
    /// The kubelet reads our device list since that time.
    Serving { kubelet: SocketIdentity, since: Instant, attempt: u32 },
}

/// What moves the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Input {
    /// The sockets as they are now.
    Looked { kubelet: Option<SocketIdentity>, own: OwnSocket },
    /// A device list stream was opened or ended.
    Stream(StreamEvent),
    /// The kubelet accepted or refused, or did not answer in time.
    Answered(Outcome),
    /// The time that the state waits for has come.
    Due,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OwnSocket {
    InPlace,
    Replaced,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Accepted,
    Failed,
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

/// A session that served this long was a good one: its end starts a new count of failures.
const SERVED_WELL: Duration = Duration::from_secs(10);

// === impl State ===

impl State {
    /// The transition function.
    fn next(self, input: Input, now: Instant, limits: &SessionLimits) -> Self {
        match (self, input) {
            (_, Input::Looked { kubelet: None, .. }) => Self::NoKubelet,
            (state, Input::Looked { kubelet: Some(kubelet), own }) => {
                let unchanged = own == OwnSocket::InPlace && state.kubelet() == Some(kubelet);
                if unchanged { state } else { Self::Waiting { kubelet, until: now, attempt: 0 } }
            }
            (Self::Waiting { kubelet, attempt, .. }, Input::Due) => {
                Self::Registering { kubelet, attempt }
            }
            (Self::Registering { kubelet, attempt }, Input::Answered(Outcome::Accepted)) => {
                Self::Registered { kubelet, until: now + limits.stream_deadline, attempt }
            }
            (Self::Registering { kubelet, attempt }, Input::Answered(Outcome::Failed))
            | (
                Self::Registered { kubelet, attempt, .. },
                Input::Due | Input::Stream(StreamEvent::Ended),
            ) => Self::waiting(kubelet, attempt, now, limits),
            (
                Self::Registering { kubelet, attempt } | Self::Registered { kubelet, attempt, .. },
                Input::Stream(StreamEvent::Opened),
            ) => Self::Serving { kubelet, since: now, attempt },
            (Self::Serving { kubelet, since, attempt }, Input::Stream(StreamEvent::Ended)) => {
                let attempt = if now - since >= SERVED_WELL { 0 } else { attempt };
                Self::waiting(kubelet, attempt, now, limits)
            }
            (state, _) => state,
        }
    }

    /// Waits longer after each failure in a row.
    fn waiting(
        kubelet: SocketIdentity,
        attempt: u32,
        now: Instant,
        limits: &SessionLimits,
    ) -> Self {
        let factor = 1_u32.checked_shl(attempt).unwrap_or(u32::MAX);
        let pause = limits.retry_first.saturating_mul(factor).min(limits.retry_most);
        Self::Waiting { kubelet, until: now + pause, attempt: attempt.saturating_add(1) }
    }

    fn kubelet(self) -> Option<SocketIdentity> {
        match self {
            Self::NoKubelet => None,
            Self::Waiting { kubelet, .. }
            | Self::Registering { kubelet, .. }
            | Self::Registered { kubelet, .. }
            | Self::Serving { kubelet, .. } => Some(kubelet),
        }
    }

    /// When the state is due.
    fn due(self) -> Option<Instant> {
        match self {
            Self::Waiting { until, .. } | Self::Registered { until, .. } => Some(until),
            Self::NoKubelet | Self::Registering { .. } | Self::Serving { .. } => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::NoKubelet => "waiting for kubelet.sock",
            Self::Waiting { .. } => "waiting to register",
            Self::Registering { .. } => "registering",
            Self::Registered { .. } => "registered",
            Self::Serving { .. } => "serving the kubelet",
        }
    }
}

// === impl Session ===

impl Session {
    /// Keeps the resource registered until stopped.
    pub(super) async fn run(mut self, endpoint: &mut Endpoint, stop: &CancellationToken) {
        let mut state = State::NoKubelet;
        let mut call = None;
        let mut input = self.look(endpoint);
        loop {
            let next = state.next(input, Instant::now(), &self.limits);
            self.enter(state, next, &mut call);
            state = next;
            input = tokio::select! {
                () = stop.cancelled() => return,
                outcome = answer(&mut call) => Input::Answered(outcome),
                Some(event) = self.streams.recv() => Input::Stream(event),
                Ok(()) = self.directory.changed() => self.look(endpoint),
                () = due(state) => Input::Due,
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
                tracing::error!(error = &error as &dyn std::error::Error, "cannot serve");
                return Input::Looked { kubelet: None, own };
            }
            tracing::info!(socket = %endpoint.path(), "socket was deleted, serving on a new one");
        }
        Input::Looked { kubelet: self.kubelet.identity(), own }
    }

    fn enter(&self, from: State, to: State, call: &mut Option<Call>) {
        if from == to {
            return;
        }
        if from.name() != to.name() {
            tracing::debug!(from = from.name(), to = to.name(), "session");
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
            endpoint: super::socket_path(std::path::Path::new(""), &self.resource)
                .map(|path| path.file_name().to_owned())
                .unwrap_or_default(),
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

async fn due(state: State) {
    match state.due() {
        Some(time) => until(time).await,
        None => std::future::pending().await,
    }
}

/// One registration. Failures are said when they begin, then only to those who ask for details.
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
    let outcome = timeout(deadline, call).await.unwrap_or(Err(RegisterError::Late(deadline)));
    let Err(error) = outcome else { return Outcome::Accepted };
    let error = &error as &dyn std::error::Error;
    match attempt {
        0 | 1 => tracing::warn!(error, "registration failed, trying again"),
        _ => tracing::debug!(error, attempt, "registration failed, trying again"),
    }
    Outcome::Failed
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: SessionLimits = SessionLimits {
        register_deadline: Duration::from_secs(15),
        stream_deadline: Duration::from_secs(5),
        retry_first: Duration::from_millis(100),
        retry_most: Duration::from_secs(1),
        look_interval: Duration::from_secs(10),
    };

    /// Two different sockets.
    fn sockets() -> (SocketIdentity, SocketIdentity) {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let bind = |name| {
            let path = dir.path().join(name);
            let listener = std::os::unix::net::UnixListener::bind(&path).expect("bound");
            let identity = SocketPath::new(path).expect("short").identity().expect("bound");
            (identity, listener)
        };
        (bind("a").0, bind("b").0)
    }

    fn looked(kubelet: Option<SocketIdentity>) -> Input {
        Input::Looked { kubelet, own: OwnSocket::InPlace }
    }

    fn run(inputs: &[Input]) -> State {
        let now = Instant::now();
        inputs.iter().fold(State::NoKubelet, |state, input| state.next(*input, now, &LIMITS))
    }

    fn serving(kubelet: SocketIdentity) -> [Input; 4] {
        [
            looked(Some(kubelet)),
            Input::Due,
            Input::Answered(Outcome::Accepted),
            Input::Stream(StreamEvent::Opened),
        ]
    }

    #[test]
    fn a_kubelet_that_appears_is_registered_with_and_served() {
        let (kubelet, _) = sockets();
        assert_eq!(run(&[looked(None)]), State::NoKubelet);
        assert!(matches!(run(&serving(kubelet)[..1]), State::Waiting { attempt: 0, .. }));
        assert!(matches!(run(&serving(kubelet)[..2]), State::Registering { .. }));
        assert!(matches!(run(&serving(kubelet)[..3]), State::Registered { .. }));
        assert!(matches!(run(&serving(kubelet)), State::Serving { .. }));
    }

    #[test]
    fn a_list_that_is_asked_for_before_the_answer_counts() {
        let (kubelet, _) = sockets();
        let early = [looked(Some(kubelet)), Input::Due, Input::Stream(StreamEvent::Opened)];
        assert!(matches!(run(&early), State::Serving { .. }));
        let answered = [&early[..], &[Input::Answered(Outcome::Accepted)]].concat();
        assert!(matches!(run(&answered), State::Serving { .. }));
    }

    #[test]
    fn every_loss_leads_to_a_new_registration() {
        let (kubelet, other) = sockets();
        for loss in [
            Input::Stream(StreamEvent::Ended),
            looked(Some(other)),
            Input::Looked { kubelet: Some(kubelet), own: OwnSocket::Replaced },
        ] {
            let after = run(&[&serving(kubelet)[..], &[loss]].concat());
            assert!(matches!(after, State::Waiting { .. }), "{loss:?} leads to {after:?}");
        }
        let gone = run(&[&serving(kubelet)[..], &[looked(None)]].concat());
        assert_eq!(gone, State::NoKubelet);
    }

    #[test]
    fn an_unchanged_world_changes_nothing() {
        let (kubelet, _) = sockets();
        let state = run(&serving(kubelet));
        let now = Instant::now();
        assert_eq!(state.next(looked(Some(kubelet)), now, &LIMITS), state);
        assert_eq!(state.next(Input::Due, now, &LIMITS), state);
    }

    #[test]
    fn failures_in_a_row_wait_longer_up_to_the_limit() {
        let (kubelet, _) = sockets();
        let now = Instant::now();
        let mut state = State::Registering { kubelet, attempt: 0 };
        let mut pauses = Vec::new();
        for _ in 0..6 {
            state = state.next(Input::Answered(Outcome::Failed), now, &LIMITS);
            pauses.push(state.due().expect("waiting") - now);
            state = state.next(Input::Due, now, &LIMITS);
        }
        let expected = [100, 200, 400, 800, 1000, 1000].map(Duration::from_millis);
        assert_eq!(pauses, expected);
    }

    #[test]
    fn a_kubelet_that_accepts_and_never_asks_is_registered_with_again() {
        let (kubelet, _) = sockets();
        let silent = [&serving(kubelet)[..3], &[Input::Due]].concat();
        assert!(matches!(run(&silent), State::Waiting { attempt: 1, .. }));
    }
}
