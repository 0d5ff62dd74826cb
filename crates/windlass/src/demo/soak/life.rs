//! The life of one process of the agent: what it takes, against what it took when all had settled.

use std::time::Duration;

use tokio::time::Instant;
use windlass_conformance::process::Usage;

use super::invariant::{Broken, bounded};

/// The process that lives now, and how long one was watched at most.
#[derive(Debug, Default)]
pub(super) struct Life {
    /// Since when it is watched, and what it had then.
    settled: Option<(Instant, Usage)>,
    longest: Duration,
}

// === impl Life ===

impl Life {
    /// All is settled; a process that is watched already goes on being so.
    pub(super) fn begins(&mut self, now: Instant, usage: Usage) {
        self.settled.get_or_insert((now, usage));
    }

    /// The process is gone.
    pub(super) fn ends(&mut self) {
        self.settled = None;
    }

    /// It has about what it had.
    pub(super) fn look(&mut self, now: Instant, usage: Usage) -> Result<(), Broken> {
        let Some((since, start)) = self.settled else { return Ok(()) };
        self.longest = self.longest.max(now.saturating_duration_since(since));
        bounded(start, usage)
    }

    /// The longest that one process was watched.
    pub(super) fn longest(&self) -> Duration {
        self.longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(descriptors: usize) -> Usage {
        Usage { descriptors, ..Usage::default() }
    }

    #[test]
    fn a_process_is_held_against_its_own_start_and_not_that_of_another() {
        let (mut life, begun, long) = (Life::default(), Instant::now(), Duration::from_secs(9));
        life.begins(begun, usage(40));
        life.begins(begun + long, usage(400));
        assert!(life.look(begun + long, usage(400)).is_err(), "it is the same process");
        life.ends();
        assert_eq!(life.look(begun + 2 * long, usage(400)), Ok(()), "the next is yet to settle");
        life.begins(begun + 2 * long, usage(400));
        assert_eq!(life.look(begun + 2 * long, usage(410)), Ok(()));
        assert_eq!(life.longest(), long);
    }
}
