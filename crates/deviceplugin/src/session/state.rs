//! A resource's life with the kubelet, as one state machine.
//!
//! ```text
//!   Starting (before the first look: to NoKubelet or Waiting)
//!
//!                    kubelet.sock is there             accepted            device list asked for
//!   NoKubelet ───> Waiting ───────────> Registering ───────────> Registered ───────────> Serving
//!       ^            ^   after a while       │                       │                      │
//!       │            │         refused, late │       nobody asked    │   a stream ended,    │
//!       │            └───────────────────────┴───────────────────────┴── sockets changed ───┘
//!       └── kubelet.sock is gone (from every state)
//! ```
//!
//! Three inputs move it: a look at the two sockets (after a notice from the directory, or regularly),
//! the device list streams, and the clock. [`State::next`] is the whole of the decision; the
//! module above carries it out.
//!
//! Not drawn: options that changed, of which the kubelet asks while it registers, lead to Waiting from
//! every state but the first.
//!
//! Registering again is no heartbeat: each registration replaces the kubelet's connection. It happens
//! when the stream that the last registration brought ends, even though kubelet.sock is unchanged: a
//! kubelet up to 1.36 drops its newest connection when any older stream ends (kubelet reference,
//! trap 1). Other streams, older ones or a debugger's, come and go.

use std::time::Duration;

use tokio::time::Instant;
use windlass_config::SessionLimits;
use windlass_host::deadline::Deadline;
use windlass_kubelet_api::socket::SocketIdentity;

use super::super::service::{StreamEvent, StreamId};

/// Where the session stands. `kubelet` is the socket that the state is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Nobody has looked yet: that there is no kubelet is news then, and is said.
    Starting,
    /// There is no kubelet.sock, or no socket of ours that it could dial.
    NoKubelet,
    /// It will register at that time; `attempt` counts the failures in a row.
    Waiting { kubelet: SocketIdentity, until: Instant, attempt: u32 },
    /// The call is on its way. The kubelet asks for our options before it answers.
    Registering { kubelet: SocketIdentity, attempt: u32 },
    /// The kubelet accepted, and should ask for the device list before that has passed.
    Registered { kubelet: SocketIdentity, until: Deadline, attempt: u32 },
    /// The kubelet reads our device list through that stream since that time.
    Serving { kubelet: SocketIdentity, stream: StreamId, since: Instant, attempt: u32 },
}

/// What moves the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Input {
    /// The sockets as they are now.
    Looked { kubelet: Option<SocketIdentity>, own: OwnSocket },
    /// A device list stream was opened or ended.
    Stream(StreamEvent),
    /// The kubelet accepted or refused, or did not answer in time.
    Answered(Outcome),
    /// The time that the state waits for has come.
    Due,
    /// The kubelet knows other options than the resource has by now; it asks at a registration only.
    OptionsChanged,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OwnSocket {
    InPlace,
    Replaced,
    /// It was deleted and could not be bound again.
    Missing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Accepted,
    Failed,
}

/// A session that served this long was a good one: its end starts a new count of failures.
const SERVED_WELL: Duration = Duration::from_secs(10);

// === impl State ===

impl State {
    /// The transition function.
    pub(super) fn next(self, input: Input, now: Instant, limits: &SessionLimits) -> Self {
        match (self, input) {
            (
                _,
                Input::Looked { kubelet: None, .. } | Input::Looked { own: OwnSocket::Missing, .. },
            ) => Self::NoKubelet,
            (state, Input::Looked { kubelet: Some(kubelet), own }) => {
                let unchanged = own == OwnSocket::InPlace && state.kubelet() == Some(kubelet);
                if unchanged { state } else { Self::Waiting { kubelet, until: now, attempt: 0 } }
            }
            (Self::Waiting { kubelet, attempt, .. }, Input::Due) => {
                Self::Registering { kubelet, attempt }
            }
            (Self::Registering { kubelet, attempt }, Input::Answered(Outcome::Accepted)) => {
                let until = Deadline::starting_at(now, limits.stream_deadline);
                Self::Registered { kubelet, until, attempt }
            }
            (Self::Registered { kubelet, mut until, attempt }, Input::Due) => {
                if until.has_passed(now) {
                    Self::waiting(kubelet, attempt, now, limits)
                } else {
                    Self::Registered { kubelet, until, attempt }
                }
            }
            // A stream may have come while the kubelet refused: it was not the kubelet's.
            (
                Self::Registering { kubelet, attempt } | Self::Serving { kubelet, attempt, .. },
                Input::Answered(Outcome::Failed),
            ) => Self::waiting(kubelet, attempt, now, limits),
            (
                Self::Registering { kubelet, attempt } | Self::Registered { kubelet, attempt, .. },
                Input::Stream(StreamEvent::Opened(stream)),
            ) => Self::Serving { kubelet, stream, since: now, attempt },
            (
                Self::Serving { kubelet, stream, since, attempt },
                Input::Stream(StreamEvent::Ended(ended)),
            ) if ended == stream => {
                let attempt = if now - since >= SERVED_WELL { 0 } else { attempt };
                Self::waiting(kubelet, attempt, now, limits)
            }
            (state, Input::OptionsChanged) => match state.kubelet() {
                Some(kubelet) => Self::Waiting { kubelet, until: now, attempt: 0 },
                None => state,
            },
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
            Self::Starting | Self::NoKubelet => None,
            Self::Waiting { kubelet, .. }
            | Self::Registering { kubelet, .. }
            | Self::Registered { kubelet, .. }
            | Self::Serving { kubelet, .. } => Some(kubelet),
        }
    }

    /// When the state is due.
    pub(super) fn due(self) -> Option<Instant> {
        match self {
            Self::Waiting { until, .. } => Some(until),
            Self::Registered { until, .. } => Some(until.next_look()),
            Self::Starting | Self::NoKubelet | Self::Registering { .. } | Self::Serving { .. } => {
                None
            }
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Starting => "not yet looked for",
            Self::NoKubelet => "waiting for kubelet.sock",
            Self::Waiting { .. } => "waiting to register",
            Self::Registering { .. } => "registering",
            Self::Registered { .. } => "registered",
            Self::Serving { .. } => "serving the kubelet",
        }
    }
}

#[cfg(test)]
mod tests {
    use windlass_kubelet_api::socket::SocketPath;

    use super::*;

    const LIMITS: SessionLimits = SessionLimits {
        register_deadline: Duration::from_secs(15),
        stream_deadline: Duration::from_secs(5),
        retry_first: Duration::from_millis(100),
        retry_most: Duration::from_secs(1),
        handover: Duration::from_secs(2),
        claim_deadline: Duration::from_secs(40),
        claim_patience: Duration::from_secs(10),
        look_interval: Duration::from_secs(10),
    };

    const OURS: StreamId = StreamId(1);
    const FOREIGN: StreamId = StreamId(2);

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
        inputs.iter().fold(State::Starting, |state, input| state.next(*input, now, &LIMITS))
    }

    fn serving(kubelet: SocketIdentity) -> [Input; 4] {
        [
            looked(Some(kubelet)),
            Input::Due,
            Input::Answered(Outcome::Accepted),
            Input::Stream(StreamEvent::Opened(OURS)),
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
        let early = [looked(Some(kubelet)), Input::Due, Input::Stream(StreamEvent::Opened(OURS))];
        assert!(matches!(run(&early), State::Serving { .. }));
        let answered = [&early[..], &[Input::Answered(Outcome::Accepted)]].concat();
        assert!(matches!(run(&answered), State::Serving { .. }));
    }

    #[test]
    fn every_loss_leads_to_a_new_registration() {
        let (kubelet, other) = sockets();
        for loss in [
            Input::Stream(StreamEvent::Ended(OURS)),
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
    fn streams_of_others_come_and_go() {
        let (kubelet, _) = sockets();
        let state = run(&serving(kubelet));
        let now = Instant::now();
        for event in [StreamEvent::Opened(FOREIGN), StreamEvent::Ended(FOREIGN)] {
            assert_eq!(state.next(Input::Stream(event), now, &LIMITS), state);
        }
        let early =
            [looked(Some(kubelet)), Input::Due, Input::Stream(StreamEvent::Opened(FOREIGN))];
        let refused = [&early[..], &[Input::Answered(Outcome::Failed)]].concat();
        assert!(matches!(run(&refused), State::Waiting { .. }), "the stream was not the kubelet's");
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
        let (begun, mut state) = (Instant::now(), run(&serving(kubelet)[..3]));
        while let State::Registered { until, .. } = state {
            assert!(until.next_look() < begun + LIMITS.stream_deadline * 2, "it waits for ever");
            state = state.next(Input::Due, until.next_look(), &LIMITS);
        }
        assert!(matches!(state, State::Waiting { attempt: 1, .. }));
    }

    #[test]
    fn a_kubelet_that_asked_while_the_agent_was_stopped_is_not_registered_with_again() {
        let (kubelet, _) = sockets();
        let woken = Instant::now() + LIMITS.stream_deadline * 10;
        let state = run(&serving(kubelet)[..3]).next(Input::Due, woken, &LIMITS);
        assert!(matches!(state, State::Registered { .. }), "what it asked is yet to be heard");
    }
}
