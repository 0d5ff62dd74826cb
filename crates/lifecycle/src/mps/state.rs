//! State machine of an MPS daemon.
//!
//! ```text
//!               a process exists            limits set, answered          due
//!   Preparing ──────────────────> SettingLimits ─────────────────> Ready ────> Checking
//!    ^  │                              │ ^                          │ ^            │
//!    │  │ refused                      │ └──── spec changed ────────┤ └─ answered ─┤
//!    │  v                              v                            v              v
//!    │ Ending <── no answer ───────────┴──────── process ended ─────┴── no answer ─┘
//!    │  │                                                               three times
//!    │  v
//!   Waiting    longer after each failure in a row
//! ```
//!
//! After one missed answer a daemon is not ended, since every program on its GPU would die with it. Its device is only
//! withheld until the daemon answers. Ending comes before Waiting even if no process was started, so that none remains.
//!
//! Not drawn: a daemon with an impossible spec goes from `SettingLimits` to `KeepingLimits` until the spec changes.
//! Without a spec, the supervision of a daemon ends in any state.

use std::time::Duration;

use tokio::time::Instant;
use windlass_config::MpsSettings;
use windlass_host::backoff::backoff;

/// State of a daemon. `attempt` counts the failures in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Folders and compute mode are being set, then a running daemon is adopted or a new one started.
    Preparing { attempt: u32 },
    /// The limits are being set and read back. `revision` counts the changes of the spec, so that each change enters
    /// the state again.
    SettingLimits { attempt: u32, revision: u32 },
    /// The daemon runs. It answered all but the last `missed` checks; the next check is at `due`.
    Ready { due: Instant, since: Instant, missed: u32, attempt: u32 },
    /// A check of the daemon is running.
    Checking { since: Instant, missed: u32, attempt: u32 },
    /// The spec is impossible. The daemon keeps its previous limits, for the programs that use it.
    KeepingLimits { attempt: u32 },
    /// Remaining processes are being ended.
    Ending { attempt: u32 },
    /// The daemon is started again at this time.
    Waiting { until: Instant, attempt: u32 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Input {
    /// The state's action is done.
    Done(ActionOutcome),
    /// The process ended.
    Exited,
    /// The time of [`State::due`] has passed.
    TimerElapsed,
    /// The spec has changed.
    SpecChanged,
}

/// Outcome of a state's action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ActionOutcome {
    Succeeded,
    Failed,
    /// The spec is impossible, so that a restart would not help.
    SpecImpossible,
}

/// Missed answers in a row after which a daemon counts as hanging.
const MAX_MISSED_CHECKS: u32 = 3;

/// Running time after which the count of failures in a row starts at zero again.
const STABLE_RUN: Duration = Duration::from_secs(60);

// === impl State ===

impl State {
    pub(super) const INITIAL: Self = Self::Preparing { attempt: 0 };

    /// The transition function.
    pub(super) fn next(self, input: Input, now: Instant, settings: &MpsSettings) -> Self {
        match (self, input) {
            (Self::Preparing { attempt }, Input::Done(ActionOutcome::Succeeded)) => {
                Self::SettingLimits { attempt, revision: 0 }
            }
            (Self::SettingLimits { attempt, .. }, Input::Done(ActionOutcome::Succeeded)) => {
                let due = now + settings.question_interval;
                Self::Ready { due, since: now, missed: 0, attempt }
            }
            (Self::Ready { since, missed, attempt, .. }, Input::TimerElapsed) => {
                Self::Checking { since, missed, attempt }
            }
            (Self::Checking { since, missed, attempt }, Input::Done(outcome)) => {
                let missed = if outcome == ActionOutcome::Succeeded { 0 } else { missed + 1 };
                if missed == MAX_MISSED_CHECKS {
                    return self.ending(now);
                }
                // A check after a miss comes sooner, but not at once: three immediate checks would all miss.
                let delay = match missed {
                    0 => settings.question_interval,
                    _ => settings.answer_deadline,
                };
                Self::Ready { due: now + delay, since, missed, attempt }
            }
            (Self::SettingLimits { attempt, revision }, Input::SpecChanged) => {
                Self::SettingLimits { attempt, revision: revision + 1 }
            }
            (
                Self::Ready { attempt, .. }
                | Self::Checking { attempt, .. }
                | Self::KeepingLimits { attempt },
                Input::SpecChanged,
            ) => Self::SettingLimits { attempt, revision: 0 },
            (Self::SettingLimits { attempt, .. }, Input::Done(ActionOutcome::SpecImpossible)) => {
                Self::KeepingLimits { attempt }
            }
            // The new spec may be possible.
            (Self::Waiting { .. }, Input::SpecChanged) => Self::INITIAL,
            (Self::Preparing { .. } | Self::SettingLimits { .. }, Input::Done(_))
            | (
                Self::SettingLimits { .. }
                | Self::Ready { .. }
                | Self::Checking { .. }
                | Self::KeepingLimits { .. },
                Input::Exited,
            ) => self.ending(now),
            (Self::Ending { attempt }, Input::Done(_)) => Self::waiting(attempt, now, settings),
            (Self::Waiting { attempt, .. }, Input::TimerElapsed) => Self::Preparing { attempt },
            (state, _) => state,
        }
    }

    fn ending(self, now: Instant) -> Self {
        let attempt = match self {
            Self::Ready { since, .. } | Self::Checking { since, .. }
                if now - since >= STABLE_RUN =>
            {
                0
            }
            Self::Preparing { attempt }
            | Self::SettingLimits { attempt, .. }
            | Self::Ready { attempt, .. }
            | Self::Checking { attempt, .. }
            | Self::KeepingLimits { attempt }
            | Self::Ending { attempt }
            | Self::Waiting { attempt, .. } => attempt,
        };
        Self::Ending { attempt }
    }

    fn waiting(attempt: u32, now: Instant, settings: &MpsSettings) -> Self {
        let attempt = attempt.saturating_add(1);
        let delay = backoff(settings.retry_min, settings.retry_max, attempt);
        Self::Waiting { until: now + delay, attempt }
    }

    /// Time of the state's next input.
    pub(super) fn due(self) -> Option<Instant> {
        match self {
            Self::Ready { due, .. } => Some(due),
            Self::Waiting { until, .. } => Some(until),
            _ => None,
        }
    }

    /// True if the daemon answered the last check.
    pub(super) fn answered_last_check(self) -> bool {
        matches!(self, Self::Ready { missed: 0, .. } | Self::Checking { missed: 0, .. })
    }

    /// True before the first failure.
    pub(super) fn is_first_attempt(self) -> bool {
        matches!(self, Self::Preparing { attempt: 0 } | Self::SettingLimits { attempt: 0, .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUCCEEDED: Input = Input::Done(ActionOutcome::Succeeded);
    const FAILED: Input = Input::Done(ActionOutcome::Failed);

    fn settings() -> MpsSettings {
        MpsSettings {
            question_interval: Duration::from_secs(10),
            retry_min: Duration::from_secs(1),
            retry_max: Duration::from_secs(5),
            ..MpsSettings::default()
        }
    }

    fn run(from: State, inputs: &[Input], now: Instant) -> State {
        inputs.iter().fold(from, |state, input| state.next(*input, now, &settings()))
    }

    #[test]
    fn a_daemon_is_ready_once_its_limits_are_set() {
        let now = Instant::now();
        assert_eq!(
            run(State::INITIAL, &[SUCCEEDED], now),
            State::SettingLimits { attempt: 0, revision: 0 }
        );
        let ready = run(State::INITIAL, &[SUCCEEDED, SUCCEEDED], now);
        assert!(
            ready.answered_last_check()
                && !run(State::INITIAL, &[SUCCEEDED], now).answered_last_check()
        );
        assert_eq!(ready.due(), Some(now + Duration::from_secs(10)));
        assert_eq!(
            run(ready, &[Input::TimerElapsed, SUCCEEDED], now),
            ready,
            "an answer changes nothing"
        );
    }

    #[test]
    fn a_failed_daemon_is_ended_before_it_is_started_again() {
        let now = Instant::now();
        for inputs in [
            &[FAILED][..],
            &[SUCCEEDED, FAILED],
            &[SUCCEEDED, Input::Exited],
            &[SUCCEEDED, SUCCEEDED, Input::Exited],
            &[SUCCEEDED, SUCCEEDED, Input::TimerElapsed, Input::Exited],
            &[SUCCEEDED, Input::Done(ActionOutcome::SpecImpossible), Input::Exited],
        ] {
            let state = run(State::INITIAL, inputs, now);
            assert_eq!(state, State::Ending { attempt: 0 }, "{inputs:?}");
            let state = run(state, &[FAILED], now);
            assert!(matches!(state, State::Waiting { attempt: 1, .. }), "{state:?}");
            assert_eq!(run(state, &[Input::TimerElapsed], now), State::Preparing { attempt: 1 });
        }
    }

    #[test]
    fn three_missed_answers_in_a_row_end_a_daemon_and_one_does_not() {
        let now = Instant::now();
        let ready = run(State::INITIAL, &[SUCCEEDED, SUCCEEDED], now);
        let after_a_miss = run(ready, &[Input::TimerElapsed, FAILED], now);
        assert!(!after_a_miss.answered_last_check());
        let next_check = now + MpsSettings::default().answer_deadline;
        assert_eq!(after_a_miss.due(), Some(next_check), "it is checked again soon");
        assert_eq!(run(after_a_miss, &[Input::TimerElapsed, SUCCEEDED], now), ready);
        let hanging =
            [Input::TimerElapsed, FAILED, Input::TimerElapsed, FAILED, Input::TimerElapsed, FAILED];
        assert_eq!(run(ready, &hanging, now), State::Ending { attempt: 0 });
    }

    #[test]
    fn each_failure_in_a_row_lengthens_the_pause_and_a_stable_run_resets_it() {
        let now = Instant::now();
        let mut state = State::INITIAL;
        let mut pauses = Vec::new();
        for _ in 0..5 {
            state = run(state, &[FAILED, FAILED], now);
            pauses.push((state.due().expect("waiting") - now).as_secs());
            state = run(state, &[Input::TimerElapsed], now);
        }
        assert_eq!(pauses, [1, 2, 4, 5, 5]);
        let ready = run(state, &[SUCCEEDED, SUCCEEDED], now);
        assert_eq!(run(ready, &[Input::Exited], now), State::Ending { attempt: 5 });
        assert_eq!(run(ready, &[Input::Exited], now + STABLE_RUN), State::Ending { attempt: 0 });
    }

    #[test]
    fn other_limits_are_set_without_a_new_process() {
        let now = Instant::now();
        let ready = run(State::INITIAL, &[SUCCEEDED, SUCCEEDED], now);
        let setting_limits = State::SettingLimits { attempt: 0, revision: 0 };
        assert_eq!(run(ready, &[Input::SpecChanged], now), setting_limits);
        assert_eq!(run(ready, &[Input::TimerElapsed, Input::SpecChanged], now), setting_limits);
        assert_ne!(
            run(setting_limits, &[Input::SpecChanged], now),
            setting_limits,
            "the running action is outdated"
        );
        let keeping_limits =
            run(setting_limits, &[Input::Done(ActionOutcome::SpecImpossible)], now);
        assert_eq!(
            keeping_limits,
            State::KeepingLimits { attempt: 0 },
            "its programs survive an impossible spec"
        );
        assert_eq!(run(keeping_limits, &[Input::SpecChanged], now), setting_limits);
        let waiting = run(State::INITIAL, &[FAILED, FAILED], now);
        assert_eq!(run(waiting, &[Input::SpecChanged], now), State::INITIAL);
    }
}
