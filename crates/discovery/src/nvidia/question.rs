//! State of a driver call that may never return.
//!
//! ```text
//!          ask            deadline
//!   Idle ───────> Open ────────────> Overdue
//!    ^             │                    │
//!    └── answer ───┴────── answer ──────┘
//! ```

use std::time::Duration;

use tokio::time::Instant;
use windlass_host::deadline::Deadline;

/// A driver call that may never return.
#[derive(Default)]
pub(super) struct Question {
    state: QuestionState,
    settled: bool,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum QuestionState {
    #[default]
    Idle,
    Open(Deadline),
    Overdue,
}

// === impl Question ===

impl Question {
    /// Starts the call unless one is running; returns true if the caller must make it. It becomes overdue
    /// after `limit`.
    pub(super) fn ask(&mut self, now: Instant, limit: Duration) -> bool {
        let idle = self.is_idle();
        if idle {
            self.state = QuestionState::Open(Deadline::starting_at(now, limit));
        }
        idle
    }

    /// Records an answer, late or not.
    pub(super) fn settle(&mut self) {
        *self = Self { state: QuestionState::Idle, settled: true };
    }

    /// True once, when the deadline passes.
    pub(super) fn became_overdue(&mut self, now: Instant) -> bool {
        let QuestionState::Open(deadline) = &mut self.state else { return false };
        let late = deadline.has_passed(now);
        if late {
            *self = Self { state: QuestionState::Overdue, settled: true };
        }
        late
    }

    /// Time of the next deadline check; `None` without a running call.
    pub(super) fn next_look(&self) -> Option<Instant> {
        match self.state {
            QuestionState::Open(deadline) => Some(deadline.next_look()),
            QuestionState::Idle | QuestionState::Overdue => None,
        }
    }

    /// True while a call is running within its deadline.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, QuestionState::Open(_))
    }

    /// True once it was answered or overdue.
    pub(super) fn is_settled(&self) -> bool {
        self.settled
    }

    /// True without a running call.
    pub(super) fn is_idle(&self) -> bool {
        self.state == QuestionState::Idle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEADLINE: Duration = Duration::from_secs(5);

    /// Checks it at each due time until it is overdue.
    fn overdue_at(question: &mut Question) -> Instant {
        loop {
            let look = question.next_look().expect("an answer is waited for");
            if question.became_overdue(look) {
                return look;
            }
        }
    }

    #[test]
    fn a_call_that_hangs_is_not_made_a_second_time_and_a_late_answer_counts() {
        let (start, mut question) = (Instant::now(), Question::default());
        assert!(question.ask(start, DEADLINE));
        assert!(!question.ask(start, DEADLINE), "one call at a time");
        assert!(!question.became_overdue(start));
        let overdue = overdue_at(&mut question);
        assert_eq!(overdue - start, DEADLINE);
        assert!(!question.became_overdue(overdue), "told once");
        assert!(!question.ask(overdue, DEADLINE), "it still hangs");
        assert!(question.is_settled() && !question.is_idle());
        question.settle();
        assert!(question.ask(overdue, DEADLINE));
    }

    #[test]
    fn a_call_that_was_under_way_while_the_agent_was_stopped_has_a_fresh_deadline() {
        let (start, mut question) = (Instant::now(), Question::default());
        assert!(question.ask(start, DEADLINE));
        let woken = start + DEADLINE * 10;
        assert!(!question.became_overdue(woken), "nobody listened");
        assert_eq!(overdue_at(&mut question) - woken, DEADLINE, "and it hangs indeed");
    }
}
