//! Resource usage of an agent process, compared with the usage after its start.

use std::time::Duration;

use tokio::time::Instant;
use windlass_conformance::process::Usage;

use super::invariant::{Violation, check_growth};

/// Baseline of the current process, and the longest observation of any process.
#[derive(Debug, Default)]
pub(super) struct Baseline {
    /// Time and usage of the baseline.
    current: Option<(Instant, Usage)>,
    longest: Duration,
}

// === impl Baseline ===

impl Baseline {
    /// Sets the baseline, unless the process has one.
    pub(super) fn set_if_missing(&mut self, now: Instant, usage: Usage) {
        self.current.get_or_insert((now, usage));
    }

    /// Forgets the baseline of an ended process.
    pub(super) fn clear(&mut self) {
        self.current = None;
    }

    /// Compares the process with its baseline, if it has one.
    pub(super) fn observe(&mut self, now: Instant, usage: Usage) -> Result<(), Violation> {
        let Some((since, start)) = self.current else { return Ok(()) };
        self.longest = self.longest.max(now.saturating_duration_since(since));
        check_growth(start, usage)
    }

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
    fn each_process_is_compared_with_its_own_baseline() {
        let (mut baseline, start, long) =
            (Baseline::default(), Instant::now(), Duration::from_secs(9));
        baseline.set_if_missing(start, usage(40));
        baseline.set_if_missing(start + long, usage(400));
        assert!(
            baseline.observe(start + long, usage(400)).is_err(),
            "the process has its baseline"
        );
        baseline.clear();
        assert_eq!(
            baseline.observe(start + 2 * long, usage(400)),
            Ok(()),
            "the next process has no baseline yet"
        );
        baseline.set_if_missing(start + 2 * long, usage(400));
        assert_eq!(baseline.observe(start + 2 * long, usage(410)), Ok(()));
        assert_eq!(baseline.longest(), long);
    }
}
