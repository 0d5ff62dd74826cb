//! Effects of single observations on a device's health.

mod model;

use super::*;

const QUIET: Duration = Duration::from_secs(60);

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("a small number")
}

fn xid() -> Observation {
    Observation::Fault(Reason::Xid(79), "GPU has fallen off the bus".into())
}

/// Feeds (second, observation) pairs and returns the state after each.
fn states(observations: &[(i64, Observation)]) -> Vec<HealthState> {
    let mut tracker = HealthTracker::new(QUIET, at(0));
    let step = |(second, observation): &(i64, Observation)| {
        tracker.observe(observation, at(*second));
        tracker.health().state
    };
    observations.iter().map(step).collect()
}

#[test]
fn a_device_is_unknown_until_probed_and_healthy_at_the_first_pass() {
    assert!(!HealthTracker::new(QUIET, at(0)).health().is_healthy());
    assert_eq!(states(&[(1, Observation::Passed)]), [HealthState::Healthy]);
}

#[test]
fn a_fault_counts_at_once_and_recovery_takes_the_quiet_period() {
    use HealthState::{Healthy, Unhealthy};
    let passed = || Observation::Passed;
    let states_seen = states(&[(1, passed()), (2, xid()), (30, passed()), (61, passed())]);
    assert_eq!(states_seen, [Healthy, Unhealthy, Unhealthy, Unhealthy]);
    let states_seen = states(&[(1, passed()), (2, xid()), (62, passed())]);
    assert_eq!(states_seen, [Healthy, Unhealthy, Healthy]);
    let states_seen = states(&[(2, xid()), (50, xid()), (62, passed()), (110, passed())]);
    assert_eq!(states_seen, [Unhealthy, Unhealthy, Unhealthy, Healthy]);
}

#[test]
fn a_slow_first_probe_costs_no_quiet_period_and_a_later_one_does() {
    use HealthState::{Healthy, Unhealthy, Unknown};
    let overdue = || Observation::TimedOut("5s".into());
    let passed = || Observation::Passed;
    let states_seen = states(&[(5, overdue()), (6, passed()), (20, overdue()), (21, passed())]);
    assert_eq!(states_seen, [Unknown, Healthy, Unhealthy, Unhealthy]);
}

#[test]
fn a_probe_that_keeps_failing_is_one_failure_and_repeated_faults_are_counted() {
    let mut tracker = HealthTracker::new(QUIET, at(0));
    for second in 1..=5 {
        tracker.observe(&Observation::Failed(Reason::Lost, "GPU is lost".into()), at(second));
    }
    assert_eq!(tracker.health().failure().expect("unhealthy").count, 1);
    for second in 6..=10 {
        tracker.observe(&xid(), at(second));
    }
    let failure = tracker.health().failure().expect("unhealthy").clone();
    assert_eq!((failure.count, failure.first, failure.last), (5, at(6), at(10)));
    let expected = "Unhealthy: XID 79, GPU has fallen off the bus; restart the machine";
    assert_eq!(tracker.health().to_string(), expected);
}

#[test]
fn failures_outlive_recovery_and_are_bounded() {
    let mut tracker = HealthTracker::new(QUIET, at(0));
    for code in 100..120 {
        let fault = Observation::Fault(Reason::Xid(code), String::new());
        tracker.observe(&fault, at(1));
    }
    tracker.observe(&Observation::Passed, at(100));
    let health = tracker.health();
    assert_eq!((health.state, health.failures.len()), (HealthState::Healthy, MAX_FAILURES));
    assert_eq!(health.failure(), None);
    assert_eq!(health.failures.last().map(|last| last.reason), Some(Reason::Xid(119)));
}

#[test]
fn a_device_that_flaps_is_quiet_for_longer_each_time() {
    let mut tracker = HealthTracker::new(QUIET, at(0));
    tracker.observe(&Observation::Passed, at(0));
    let mut now = 0;
    for wait in [60, 120, 240] {
        tracker.observe(&xid(), at(now));
        assert_eq!(tracker.recovers_at(), Some(at(now + wait)));
        tracker.observe(&Observation::Passed, at(now + wait - 1));
        assert!(!tracker.health().is_healthy(), "healthy before the quiet period is over");
        tracker.observe(&Observation::Passed, at(now + wait));
        assert!(tracker.health().is_healthy());
        now += wait + 10;
    }
}

#[test]
fn an_unhealthy_device_waits_out_its_quiet_period_across_a_restart() {
    let mut earlier = HealthTracker::new(QUIET, at(0));
    earlier.observe(&Observation::Passed, at(1));
    earlier.observe(&xid(), at(10));
    let text = serde_json::to_string(&earlier.record()).expect("plain");
    let record = serde_json::from_str(&text).expect("the record parses");
    let mut tracker = HealthTracker::resume(record, QUIET, at(11));
    assert_eq!(tracker.health(), earlier.health());
    tracker.observe(&Observation::Passed, at(12));
    assert!(!tracker.health().is_healthy());
    tracker.observe(&Observation::Passed, at(70));
    assert!(tracker.health().is_healthy());
    let later = HealthTracker::resume(tracker.record(), QUIET, at(80));
    assert_eq!(later.health().state, HealthState::Unknown, "not probed since the restart");
}

#[test]
fn a_clock_set_back_during_a_restart_costs_one_quiet_period_and_one_set_forward_takes_a_probe() {
    let mut earlier = HealthTracker::new(QUIET, at(0));
    earlier.observe(&xid(), at(1_000));
    let set_back = HealthTracker::resume(earlier.record(), QUIET, at(10));
    assert_eq!(set_back.recovers_at(), Some(at(70)), "one quiet period from now");
    assert_eq!(set_back.health().since, at(10), "the start of the state is not in the future");
    let mut set_forward = HealthTracker::resume(earlier.record(), QUIET, at(1_000_000));
    assert_eq!(
        set_forward.health().state,
        HealthState::Unhealthy,
        "unhealthy until a probe passes"
    );
    set_forward.observe(&Observation::Passed, at(1_000_000));
    assert!(set_forward.health().is_healthy());
}

#[test]
fn after_a_reboot_failures_are_history_and_start_no_quiet_period() {
    let mut earlier = HealthTracker::new(QUIET, at(0));
    earlier.observe(&xid(), at(10));
    let mut tracker = HealthTracker::resume(earlier.record().into_history(), QUIET, at(11));
    assert_eq!((tracker.health().state, tracker.recovers_at()), (HealthState::Unknown, None));
    tracker.observe(&Observation::Passed, at(12));
    assert!(tracker.health().is_healthy());
    assert_eq!(tracker.health().failures.len(), 1);
}
