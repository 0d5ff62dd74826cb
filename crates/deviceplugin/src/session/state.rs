//! State machine of a resource's kubelet session.
//!
//! ```text
//!   Starting (before the first check: to NoKubelet or Waiting)
//!
//!             kubelet.sock exists                     accepted             device list opened
//!   NoKubelet ───> Waiting ───────────> Registering ───────────> Registered ───────────> Serving
//!       ^            ^   back-off is over    │                       │                      │
//!       │            │         refused, late │       list not opened │   the stream ended,  │
//!       │            └───────────────────────┴───────────────────────┴── sockets changed ───┘
//!       └── kubelet.sock is missing (from every state)
//! ```
//!
//! Inputs are checks of the two sockets (after a change of the folder, and regularly), events of `ListAndWatch`
//! streams, and the clock. [`State::next`] makes every decision; the parent module performs it.
//!
//! Not drawn: changed options lead to Waiting from every state but Starting. The kubelet reads options at
//! registration only.
//!
//! Registrations are not repeated as a heartbeat, because each one replaces the kubelet's connection. The session
//! registers again when the stream of the last registration ends, even if kubelet.sock is unchanged: a kubelet up to
//! 1.36 drops its newest connection when any older stream ends (Kubernetes PR 135437). Other streams, such as a
//! debugger's, are ignored.

use std::time::Duration;

use tokio::time::Instant;
use windlass_config::KubeletLimits;
use windlass_host::{backoff::backoff, deadline::Deadline};
use windlass_kubelet_api::socket::SocketIdentity;

use super::super::service::{StreamEvent, StreamId};

/// Session state. `kubelet` identifies the socket that the state refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Before the first check. If that finds no kubelet, it is logged as a warning.
    Starting,
    /// kubelet.sock is missing, or the resource's own socket could not be bound.
    NoKubelet,
    /// Registers at `until`; `attempt` counts consecutive failures.
    Waiting { kubelet: SocketIdentity, until: Instant, attempt: u32 },
    /// The call is in progress. The kubelet calls `GetDevicePluginOptions` before it answers.
    Registering { kubelet: SocketIdentity, attempt: u32 },
    /// The kubelet has accepted. It has to call `ListAndWatch` before `until`.
    Registered { kubelet: SocketIdentity, until: Deadline, attempt: u32 },
    /// The kubelet reads the device list from `stream`.
    Serving { kubelet: SocketIdentity, stream: StreamId, since: Instant, attempt: u32 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Input {
    /// Result of a socket check.
    Checked { kubelet: Option<SocketIdentity>, own: OwnSocket },
    /// A device list stream opened or ended.
    Stream(StreamEvent),
    /// Outcome of the registration call.
    Answered(RegistrationOutcome),
    /// The deadline of the state has passed.
    TimerElapsed,
    /// The options differ from those at registration.
    OptionsChanged,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OwnSocket {
    Bound,
    Replaced,
    /// Deleted, and binding it again failed.
    Missing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RegistrationOutcome {
    Accepted,
    Failed,
}

/// Shortest successful session. After it, failures count from zero again.
const MIN_STABLE_SESSION: Duration = Duration::from_secs(10);

// === impl State ===

impl State {
    /// The transition function.
    pub(super) fn next(self, input: Input, now: Instant, limits: &KubeletLimits) -> Self {
        match (self, input) {
            (
                _,
                Input::Checked { kubelet: None, .. }
                | Input::Checked { own: OwnSocket::Missing, .. },
            ) => Self::NoKubelet,
            (state, Input::Checked { kubelet: Some(kubelet), own }) => {
                let is_unchanged = own == OwnSocket::Bound && state.kubelet() == Some(kubelet);
                if is_unchanged { state } else { Self::Waiting { kubelet, until: now, attempt: 0 } }
            }
            (Self::Waiting { kubelet, attempt, .. }, Input::TimerElapsed) => {
                Self::Registering { kubelet, attempt }
            }
            (
                Self::Registering { kubelet, attempt },
                Input::Answered(RegistrationOutcome::Accepted),
            ) => {
                let until = Deadline::starting_at(now, limits.stream_deadline);
                Self::Registered { kubelet, until, attempt }
            }
            (Self::Registered { kubelet, mut until, attempt }, Input::TimerElapsed) => {
                if until.has_passed(now) {
                    Self::waiting(kubelet, attempt, now, limits)
                } else {
                    Self::Registered { kubelet, until, attempt }
                }
            }
            // A stream that opened during a refused registration was not the kubelet's.
            (
                Self::Registering { kubelet, attempt } | Self::Serving { kubelet, attempt, .. },
                Input::Answered(RegistrationOutcome::Failed),
            ) => Self::waiting(kubelet, attempt, now, limits),
            (
                Self::Registering { kubelet, attempt } | Self::Registered { kubelet, attempt, .. },
                Input::Stream(StreamEvent::Opened(stream)),
            ) => Self::Serving { kubelet, stream, since: now, attempt },
            (
                Self::Serving { kubelet, stream, since, attempt },
                Input::Stream(StreamEvent::Ended(ended)),
            ) if ended == stream => {
                let attempt = if now - since >= MIN_STABLE_SESSION { 0 } else { attempt };
                Self::waiting(kubelet, attempt, now, limits)
            }
            (state, Input::OptionsChanged) => match state.kubelet() {
                Some(kubelet) => Self::Waiting { kubelet, until: now, attempt: 0 },
                None => state,
            },
            (state, _) => state,
        }
    }

    /// Exponential back-off.
    fn waiting(
        kubelet: SocketIdentity,
        attempt: u32,
        now: Instant,
        limits: &KubeletLimits,
    ) -> Self {
        let attempt = attempt.saturating_add(1);
        let delay = backoff(limits.retry_min, limits.retry_max, attempt);
        Self::Waiting { kubelet, until: now + delay, attempt }
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

    pub(super) fn due(self) -> Option<Instant> {
        match self {
            Self::Waiting { until, .. } => Some(until),
            Self::Registered { until, .. } => Some(until.next_check()),
            Self::Starting | Self::NoKubelet | Self::Registering { .. } | Self::Serving { .. } => {
                None
            }
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Starting => "not checked yet",
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

    const LIMITS: KubeletLimits = KubeletLimits {
        register_deadline: Duration::from_secs(15),
        stream_deadline: Duration::from_secs(5),
        retry_min: Duration::from_millis(100),
        retry_max: Duration::from_secs(1),
        checkpoint_delay: Duration::from_secs(2),
        claim_deadline: Duration::from_secs(40),
        claim_wait: Duration::from_secs(10),
        check_interval: Duration::from_secs(10),
    };

    const OWN_STREAM: StreamId = StreamId(1);
    const OTHER_STREAM: StreamId = StreamId(2);

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

    fn checked(kubelet: Option<SocketIdentity>) -> Input {
        Input::Checked { kubelet, own: OwnSocket::Bound }
    }

    fn run(inputs: &[Input]) -> State {
        let now = Instant::now();
        inputs.iter().fold(State::Starting, |state, input| state.next(*input, now, &LIMITS))
    }

    fn serving(kubelet: SocketIdentity) -> [Input; 4] {
        [
            checked(Some(kubelet)),
            Input::TimerElapsed,
            Input::Answered(RegistrationOutcome::Accepted),
            Input::Stream(StreamEvent::Opened(OWN_STREAM)),
        ]
    }

    #[test]
    fn a_kubelet_that_appears_is_registered_with_and_served() {
        let (kubelet, _) = sockets();
        assert_eq!(run(&[checked(None)]), State::NoKubelet);
        assert!(matches!(run(&serving(kubelet)[..1]), State::Waiting { attempt: 0, .. }));
        assert!(matches!(run(&serving(kubelet)[..2]), State::Registering { .. }));
        assert!(matches!(run(&serving(kubelet)[..3]), State::Registered { .. }));
        assert!(matches!(run(&serving(kubelet)), State::Serving { .. }));
    }

    #[test]
    fn a_stream_that_opens_before_the_answer_counts() {
        let (kubelet, _) = sockets();
        let early = [
            checked(Some(kubelet)),
            Input::TimerElapsed,
            Input::Stream(StreamEvent::Opened(OWN_STREAM)),
        ];
        assert!(matches!(run(&early), State::Serving { .. }));
        let answered = [&early[..], &[Input::Answered(RegistrationOutcome::Accepted)]].concat();
        assert!(matches!(run(&answered), State::Serving { .. }));
    }

    #[test]
    fn every_loss_leads_to_a_new_registration() {
        let (kubelet, other) = sockets();
        for loss in [
            Input::Stream(StreamEvent::Ended(OWN_STREAM)),
            checked(Some(other)),
            Input::Checked { kubelet: Some(kubelet), own: OwnSocket::Replaced },
        ] {
            let next = run(&[&serving(kubelet)[..], &[loss]].concat());
            assert!(matches!(next, State::Waiting { .. }), "{loss:?} leads to {next:?}");
        }
        let next = run(&[&serving(kubelet)[..], &[checked(None)]].concat());
        assert_eq!(next, State::NoKubelet);
    }

    #[test]
    fn foreign_streams_are_ignored() {
        let (kubelet, _) = sockets();
        let state = run(&serving(kubelet));
        let now = Instant::now();
        for event in [StreamEvent::Opened(OTHER_STREAM), StreamEvent::Ended(OTHER_STREAM)] {
            assert_eq!(state.next(Input::Stream(event), now, &LIMITS), state);
        }
        let early = [
            checked(Some(kubelet)),
            Input::TimerElapsed,
            Input::Stream(StreamEvent::Opened(OTHER_STREAM)),
        ];
        let refused = [&early[..], &[Input::Answered(RegistrationOutcome::Failed)]].concat();
        assert!(matches!(run(&refused), State::Waiting { .. }), "the stream was not the kubelet's");
    }

    #[test]
    fn unchanged_sockets_change_nothing() {
        let (kubelet, _) = sockets();
        let state = run(&serving(kubelet));
        let now = Instant::now();
        assert_eq!(state.next(checked(Some(kubelet)), now, &LIMITS), state);
        assert_eq!(state.next(Input::TimerElapsed, now, &LIMITS), state);
    }

    #[test]
    fn failures_in_a_row_wait_longer_up_to_the_limit() {
        let (kubelet, _) = sockets();
        let now = Instant::now();
        let mut state = State::Registering { kubelet, attempt: 0 };
        let mut pauses = Vec::new();
        for _ in 0..6 {
            state = state.next(Input::Answered(RegistrationOutcome::Failed), now, &LIMITS);
            pauses.push(state.due().expect("waiting") - now);
            state = state.next(Input::TimerElapsed, now, &LIMITS);
        }
        let expected = [100, 200, 400, 800, 1000, 1000].map(Duration::from_millis);
        assert_eq!(pauses, expected);
    }

    #[test]
    fn a_kubelet_that_accepts_and_opens_no_stream_is_registered_with_again() {
        let (kubelet, _) = sockets();
        let (start, mut state) = (Instant::now(), run(&serving(kubelet)[..3]));
        while let State::Registered { until, .. } = state {
            assert!(until.next_check() < start + LIMITS.stream_deadline * 2, "it waits for ever");
            state = state.next(Input::TimerElapsed, until.next_check(), &LIMITS);
        }
        assert!(matches!(state, State::Waiting { attempt: 1, .. }));
    }

    #[test]
    fn a_pause_of_the_agent_does_not_count_against_the_kubelet() {
        let (kubelet, _) = sockets();
        let wake_time = Instant::now() + LIMITS.stream_deadline * 10;
        let state = run(&serving(kubelet)[..3]).next(Input::TimerElapsed, wake_time, &LIMITS);
        assert!(matches!(state, State::Registered { .. }), "its call may still be waiting");
    }
}
