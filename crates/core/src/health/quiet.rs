//! Quiet period after the last failure of a device, with exponential growth for relapses.

use std::time::Duration;

use jiff::Timestamp;

use super::{Health, HealthRecord};

/// Quiet period of one device. Each relapse doubles it, up to a bound. A long healthy time resets it.
#[derive(Clone, Debug)]
pub(super) struct QuietPeriod {
    period: Duration,
    last_failure: Option<Timestamp>,
    relapses: u32,
}

/// Maximum number of doublings: one minute becomes half an hour. A longer quiet period would outlast most repairs.
const MAX_RELAPSES: u32 = 5;

/// Healthy time that resets the doubling, in quiet periods: an hour for a period of one minute, longer than the
/// longest quiet period.
const RESET_AFTER: u32 = 60;

// === impl QuietPeriod ===

impl QuietPeriod {
    pub(super) fn new(period: Duration) -> Self {
        Self { period, last_failure: None, relapses: 0 }
    }

    /// Continues from a record. A failure with a future timestamp counts as a failure at `now`.
    pub(super) fn resume(period: Duration, record: &HealthRecord, now: Timestamp) -> Self {
        let last_failure = record.last_failure.map(|failure| failure.min(now));
        Self { period, last_failure, relapses: record.relapses.min(MAX_RELAPSES) }
    }

    pub(super) fn set_period(&mut self, period: Duration) {
        self.period = period;
    }

    pub(super) fn last_failure(&self) -> Option<Timestamp> {
        self.last_failure
    }

    pub(super) fn relapses(&self) -> u32 {
        self.relapses
    }

    /// End of the quiet period; `None` without a failure.
    pub(super) fn ends_at(&self) -> Option<Timestamp> {
        let wait = self.period.saturating_mul(1 << self.relapses);
        Some(self.last_failure?.saturating_add(wait).unwrap_or(Timestamp::MAX))
    }

    /// Records a failure; `before` is the health before it.
    pub(super) fn record_failure(&mut self, before: &Health, now: Timestamp) {
        if before.is_healthy() {
            let recovered = self.last_failure.is_some();
            let healthy_time = Duration::try_from(now.duration_since(before.since));
            let is_quick = healthy_time.is_ok_and(|duration| duration < self.period * RESET_AFTER);
            let relapses = if recovered && is_quick { self.relapses + 1 } else { 0 };
            self.relapses = relapses.min(MAX_RELAPSES);
        }
        self.last_failure = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::HealthState;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a small number")
    }

    fn healthy_since(second: i64) -> Health {
        Health { state: HealthState::Healthy, ..Health::unknown(at(second)) }
    }

    #[test]
    fn the_quiet_period_doubles_up_to_a_bound_and_a_long_healthy_time_resets_it() {
        let mut quiet = QuietPeriod::new(Duration::from_secs(1));
        assert_eq!(quiet.ends_at(), None);
        let mut waits = Vec::new();
        for second in (10..80).step_by(10) {
            quiet.record_failure(&healthy_since(second - 1), at(second));
            let end = quiet.ends_at().expect("there was a failure");
            waits.push(end.duration_since(at(second)).as_secs());
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 32]);
        quiet.record_failure(&healthy_since(100), at(160));
        assert_eq!(quiet.ends_at(), Some(at(161)));
    }

    #[test]
    fn failure_upon_failure_is_no_relapse() {
        let mut quiet = QuietPeriod::new(Duration::from_secs(1));
        quiet.record_failure(&healthy_since(0), at(1));
        let unhealthy = Health { state: HealthState::Unhealthy, ..Health::unknown(at(1)) };
        quiet.record_failure(&unhealthy, at(2));
        assert_eq!((quiet.relapses(), quiet.ends_at()), (0, Some(at(3))));
    }
}
