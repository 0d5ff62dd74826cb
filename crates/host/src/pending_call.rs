//! State of a driver call that may never return.
//!
//! ```text
//!         begin              deadline
//!   Idle ───────> Running ────────────> Overdue
//!    ^               │                     │
//!    └─── answer ────┴────── answer ───────┘
//! ```

use std::time::Duration;

use crate::deadline::Deadline;
use tokio::time::Instant;

/// A driver call that may never return.
#[derive(Debug, Default)]
pub struct PendingCall {
    state: PendingCallState,
    settled: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum PendingCallState {
    #[default]
    Idle,
    Running(Deadline),
    Overdue,
}

// === impl PendingCall ===

impl PendingCall {
    /// Starts a call unless one is running. Returns true if the caller must make the call. The call becomes overdue
    /// after `limit`.
    pub fn begin(&mut self, now: Instant, limit: Duration) -> bool {
        let is_idle = self.is_idle();
        if is_idle {
            self.state = PendingCallState::Running(Deadline::starting_at(now, limit));
        }
        is_idle
    }

    /// Records the answer, even one after the deadline.
    pub fn settle(&mut self) {
        *self = Self { state: PendingCallState::Idle, settled: true };
    }

    /// True once, when the deadline passes.
    pub fn became_overdue(&mut self, now: Instant) -> bool {
        let PendingCallState::Running(deadline) = &mut self.state else { return false };
        let is_overdue = deadline.has_passed(now);
        if is_overdue {
            *self = Self { state: PendingCallState::Overdue, settled: true };
        }
        is_overdue
    }

    /// Time of the next deadline check; `None` without a running call.
    pub fn next_check(&self) -> Option<Instant> {
        match self.state {
            PendingCallState::Running(deadline) => Some(deadline.next_check()),
            PendingCallState::Idle | PendingCallState::Overdue => None,
        }
    }

    /// True while a call is running within its deadline.
    pub fn is_running(&self) -> bool {
        matches!(self.state, PendingCallState::Running(_))
    }

    /// True once any call was answered or overdue.
    pub fn is_settled(&self) -> bool {
        self.settled
    }

    /// True if no call is running.
    pub fn is_idle(&self) -> bool {
        self.state == PendingCallState::Idle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEADLINE: Duration = Duration::from_secs(5);

    /// Checks the call at each due time until it is overdue.
    fn overdue_at(call: &mut PendingCall) -> Instant {
        loop {
            let due = call.next_check().expect("the call is running");
            if call.became_overdue(due) {
                return due;
            }
        }
    }

    #[test]
    fn a_hanging_call_is_not_repeated_and_a_late_answer_counts() {
        let (start, mut call) = (Instant::now(), PendingCall::default());
        assert!(call.begin(start, DEADLINE));
        assert!(!call.begin(start, DEADLINE), "one call at a time");
        assert!(!call.became_overdue(start));
        let overdue = overdue_at(&mut call);
        assert_eq!(overdue - start, DEADLINE);
        assert!(!call.became_overdue(overdue), "true only once");
        assert!(!call.begin(overdue, DEADLINE), "the call still hangs");
        assert!(call.is_settled() && !call.is_idle());
        call.settle();
        assert!(call.begin(overdue, DEADLINE));
    }

    #[test]
    fn a_call_that_was_under_way_while_the_agent_was_stopped_has_a_fresh_deadline() {
        let (start, mut call) = (Instant::now(), PendingCall::default());
        assert!(call.begin(start, DEADLINE));
        let wake_up = start + DEADLINE * 10;
        assert!(!call.became_overdue(wake_up), "the agent was stopped");
        assert_eq!(
            overdue_at(&mut call) - wake_up,
            DEADLINE,
            "a fresh deadline passes in its own time"
        );
    }
}
