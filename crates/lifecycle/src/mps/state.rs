//! A daemon's life, as one state machine.
//!
//! ```text
//!               a process is there          limits set, answered          due
//!   Preparing ────────────────────> Settling ────────────────────> Ready ─────> Asking
//!    ^  │                              │ ^                          │ ^            │
//!    │  │ refused                      │ └── other limits wanted ───┤ └─ answered ─┤
//!    │  v                              v                            v              v
//!    │ Ending <── no answer ───────────┴────────── process gone ────┴── no answer ─┘
//!    │  │                                                               three times
//!    │  v
//!   Waiting    longer after each failure in a row
//! ```
//!
//! A daemon that misses one answer is not killed for it, since every program on its GPU would die
//! with it; its device is only not handed out meanwhile. Ending comes before Waiting also when
//! nothing was started: it makes sure that nothing is left.
//!
//! Not drawn: a daemon of which something impossible is wanted is Kept, out of Settling, until
//! something else is wanted, and one that is no longer wanted leaves this machine from any state.

use std::time::Duration;

use tokio::time::Instant;
use windlass_config::MpsSettings;

/// Where a daemon stands. `attempt` counts the failures in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// What it needs is checked and made, a daemon of an earlier life looked for, or one started.
    Preparing { attempt: u32 },
    /// Its limits are being set, until it takes them. `round` counts the changes of what is wanted.
    Settling { attempt: u32, round: u32 },
    /// It answered, unless it `missed` some answers; it is asked again at that time.
    Ready { due: Instant, since: Instant, missed: u32, attempt: u32 },
    /// A question is on its way.
    Asking { since: Instant, missed: u32, attempt: u32 },
    /// It runs, and what is wanted of it cannot be. It is left to the programs that use it.
    Kept { attempt: u32 },
    /// What is left of it is being ended.
    Ending { attempt: u32 },
    /// It is started again at that time.
    Waiting { until: Instant, attempt: u32 },
}

/// What moves a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Input {
    /// What the state does is done.
    Done(Outcome),
    /// The process is gone.
    Exited,
    /// The time that the state waits for has come.
    Due,
    /// Something else is wanted of it.
    Changed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Well,
    Badly,
    /// What is wanted cannot be, whatever the daemon does.
    Impossible,
}

/// Answers missed in a row after which a daemon counts as hanging.
const MOST_MISSED: u32 = 3;

/// A daemon that ran this long was a good one: its end starts a new count of failures.
const RAN_WELL: Duration = Duration::from_secs(60);

// === impl State ===

impl State {
    /// Where every daemon begins.
    pub(super) const FIRST: Self = Self::Preparing { attempt: 0 };

    /// The transition function.
    pub(super) fn next(self, input: Input, now: Instant, settings: &MpsSettings) -> Self {
        match (self, input) {
            (Self::Preparing { attempt }, Input::Done(Outcome::Well)) => {
                Self::Settling { attempt, round: 0 }
            }
            (Self::Settling { attempt, .. }, Input::Done(Outcome::Well)) => {
                let due = now + settings.question_interval;
                Self::Ready { due, since: now, missed: 0, attempt }
            }
            (Self::Ready { since, missed, attempt, .. }, Input::Due) => {
                Self::Asking { since, missed, attempt }
            }
            (Self::Asking { since, missed, attempt }, Input::Done(outcome)) => {
                let missed = if outcome == Outcome::Well { 0 } else { missed + 1 };
                if missed == MOST_MISSED {
                    return self.ending(now);
                }
                // Sooner after a miss, but not at once: what misses at once misses three times at once.
                let pause = match missed {
                    0 => settings.question_interval,
                    _ => settings.answer_deadline,
                };
                Self::Ready { due: now + pause, since, missed, attempt }
            }
            (Self::Settling { attempt, round }, Input::Changed) => {
                Self::Settling { attempt, round: round + 1 }
            }
            (
                Self::Ready { attempt, .. } | Self::Asking { attempt, .. } | Self::Kept { attempt },
                Input::Changed,
            ) => Self::Settling { attempt, round: 0 },
            (Self::Settling { attempt, .. }, Input::Done(Outcome::Impossible)) => {
                Self::Kept { attempt }
            }
            // What was wrong may be right now.
            (Self::Waiting { .. }, Input::Changed) => Self::FIRST,
            (Self::Preparing { .. } | Self::Settling { .. }, Input::Done(_))
            | (
                Self::Settling { .. }
                | Self::Ready { .. }
                | Self::Asking { .. }
                | Self::Kept { .. },
                Input::Exited,
            ) => self.ending(now),
            (Self::Ending { attempt }, Input::Done(_)) => Self::waiting(attempt, now, settings),
            (Self::Waiting { attempt, .. }, Input::Due) => Self::Preparing { attempt },
            (state, _) => state,
        }
    }

    fn ending(self, now: Instant) -> Self {
        let attempt = match self {
            Self::Ready { since, .. } | Self::Asking { since, .. } if now - since >= RAN_WELL => 0,
            Self::Preparing { attempt }
            | Self::Settling { attempt, .. }
            | Self::Ready { attempt, .. }
            | Self::Asking { attempt, .. }
            | Self::Kept { attempt }
            | Self::Ending { attempt }
            | Self::Waiting { attempt, .. } => attempt,
        };
        Self::Ending { attempt }
    }

    /// Waits longer after each failure in a row.
    fn waiting(attempt: u32, now: Instant, settings: &MpsSettings) -> Self {
        let factor = 1_u32.checked_shl(attempt).unwrap_or(u32::MAX);
        let pause = settings.retry_first.saturating_mul(factor).min(settings.retry_most);
        Self::Waiting { until: now + pause, attempt: attempt.saturating_add(1) }
    }

    /// When the state is due.
    pub(super) fn due(self) -> Option<Instant> {
        match self {
            Self::Ready { due, .. } => Some(due),
            Self::Waiting { until, .. } => Some(until),
            _ => None,
        }
    }

    /// Whether the daemon's last answer was a good one.
    pub(super) fn answers(self) -> bool {
        matches!(self, Self::Ready { missed: 0, .. } | Self::Asking { missed: 0, .. })
    }

    /// Whether nothing has gone wrong with it yet.
    pub(super) fn is_first_attempt(self) -> bool {
        matches!(self, Self::Preparing { attempt: 0 } | Self::Settling { attempt: 0, .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WELL: Input = Input::Done(Outcome::Well);
    const BADLY: Input = Input::Done(Outcome::Badly);

    fn settings() -> MpsSettings {
        MpsSettings {
            question_interval: Duration::from_secs(10),
            retry_first: Duration::from_secs(1),
            retry_most: Duration::from_secs(5),
            ..MpsSettings::default()
        }
    }

    fn run(from: State, inputs: &[Input], now: Instant) -> State {
        inputs.iter().fold(from, |state, input| state.next(*input, now, &settings()))
    }

    #[test]
    fn a_daemon_is_ready_once_it_took_its_limits() {
        let now = Instant::now();
        assert_eq!(run(State::FIRST, &[WELL], now), State::Settling { attempt: 0, round: 0 });
        let ready = run(State::FIRST, &[WELL, WELL], now);
        assert!(ready.answers() && !run(State::FIRST, &[WELL], now).answers());
        assert_eq!(ready.due(), Some(now + Duration::from_secs(10)));
        assert_eq!(run(ready, &[Input::Due, WELL], now), ready, "an answer changes nothing");
    }

    #[test]
    fn whatever_fails_is_ended_before_it_is_tried_again() {
        let now = Instant::now();
        for inputs in [
            &[BADLY][..],
            &[WELL, BADLY],
            &[WELL, Input::Exited],
            &[WELL, WELL, Input::Exited],
            &[WELL, WELL, Input::Due, Input::Exited],
            &[WELL, Input::Done(Outcome::Impossible), Input::Exited],
        ] {
            let state = run(State::FIRST, inputs, now);
            assert_eq!(state, State::Ending { attempt: 0 }, "{inputs:?}");
            let state = run(state, &[BADLY], now);
            assert!(matches!(state, State::Waiting { attempt: 1, .. }), "{state:?}");
            assert_eq!(run(state, &[Input::Due], now), State::Preparing { attempt: 1 });
        }
    }

    #[test]
    fn one_missed_answer_is_no_death_and_three_in_a_row_are() {
        let now = Instant::now();
        let ready = run(State::FIRST, &[WELL, WELL], now);
        let doubted = run(ready, &[Input::Due, BADLY], now);
        assert!(!doubted.answers());
        let soon = now + MpsSettings::default().answer_deadline;
        assert_eq!(doubted.due(), Some(soon), "it is asked again soon");
        assert_eq!(run(doubted, &[Input::Due, WELL], now), ready);
        let hanging = [Input::Due, BADLY, Input::Due, BADLY, Input::Due, BADLY];
        assert_eq!(run(ready, &hanging, now), State::Ending { attempt: 0 });
    }

    #[test]
    fn failures_in_a_row_wait_longer_and_a_good_run_starts_anew() {
        let now = Instant::now();
        let mut state = State::FIRST;
        let mut pauses = Vec::new();
        for _ in 0..5 {
            state = run(state, &[BADLY, BADLY], now);
            pauses.push((state.due().expect("waiting") - now).as_secs());
            state = run(state, &[Input::Due], now);
        }
        assert_eq!(pauses, [1, 2, 4, 5, 5]);
        let ready = run(state, &[WELL, WELL], now);
        assert_eq!(run(ready, &[Input::Exited], now), State::Ending { attempt: 5 });
        assert_eq!(run(ready, &[Input::Exited], now + RAN_WELL), State::Ending { attempt: 0 });
    }

    #[test]
    fn other_limits_are_set_without_a_new_process() {
        let now = Instant::now();
        let ready = run(State::FIRST, &[WELL, WELL], now);
        let again = State::Settling { attempt: 0, round: 0 };
        assert_eq!(run(ready, &[Input::Changed], now), again);
        assert_eq!(run(ready, &[Input::Due, Input::Changed], now), again);
        assert_ne!(run(again, &[Input::Changed], now), again, "what is on its way is outdated");
        let kept = run(again, &[Input::Done(Outcome::Impossible)], now);
        assert_eq!(kept, State::Kept { attempt: 0 }, "its programs do not die of a bad number");
        assert_eq!(run(kept, &[Input::Changed], now), again);
        let waiting = run(State::FIRST, &[BADLY, BADLY], now);
        assert_eq!(run(waiting, &[Input::Changed], now), State::FIRST);
    }
}
