//! A question to the driver that may never be answered.
//!
//! ```text
//!          ask            deadline
//!   Idle ───────> Open ────────────> Overdue
//!    ^             │                    │
//!    └── answer ───┴────── answer ──────┘
//! ```

use std::time::Duration;

use tokio::time::Instant;

/// A call into the driver that may never come back.
#[derive(Default)]
pub(super) struct Question {
    state: QuestionState,
    settled: bool,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum QuestionState {
    #[default]
    Idle,
    Open {
        since: Instant,
    },
    Overdue,
}

// === impl Question ===

impl Question {
    /// Opens the question. A call that hangs in the driver is not made a second time.
    pub(super) fn ask(&mut self, now: Instant) -> bool {
        let idle = self.is_idle();
        if idle {
            self.state = QuestionState::Open { since: now };
        }
        idle
    }

    /// The answer came, late or not.
    pub(super) fn settle(&mut self) {
        *self = Self { state: QuestionState::Idle, settled: true };
    }

    /// Whether the deadline has just passed; told once.
    pub(super) fn became_overdue(&mut self, now: Instant, deadline: Duration) -> bool {
        let late = self.open_since().is_some_and(|since| now >= since + deadline);
        if late {
            *self = Self { state: QuestionState::Overdue, settled: true };
        }
        late
    }

    /// Since when an answer is waited for that is not overdue.
    pub(super) fn open_since(&self) -> Option<Instant> {
        match self.state {
            QuestionState::Open { since } => Some(since),
            QuestionState::Idle | QuestionState::Overdue => None,
        }
    }

    /// Whether it was answered, or became overdue, once.
    pub(super) fn is_settled(&self) -> bool {
        self.settled
    }

    /// Whether no call is on its way.
    pub(super) fn is_idle(&self) -> bool {
        self.state == QuestionState::Idle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEADLINE: Duration = Duration::from_secs(5);

    #[test]
    fn a_call_that_hangs_is_not_made_a_second_time_and_a_late_answer_counts() {
        let (start, mut question) = (Instant::now(), Question::default());
        assert!(question.ask(start));
        assert!(!question.ask(start), "one call at a time");
        assert!(!question.became_overdue(start, DEADLINE));
        assert!(question.became_overdue(start + DEADLINE, DEADLINE));
        assert!(!question.became_overdue(start + DEADLINE, DEADLINE), "told once");
        assert!(!question.ask(start + DEADLINE), "it still hangs");
        assert!(question.is_settled() && !question.is_idle());
        question.settle();
        assert!(question.ask(start + DEADLINE));
    }
}
