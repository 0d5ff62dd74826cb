//! Property test of health: its guarantees hold after each observation of any history, across agent restarts.

use proptest::{collection::vec, prelude::*, sample::select};

use super::*;

/// The longest quiet period: it doubles five times.
const LONGEST: Duration = Duration::from_secs(QUIET.as_secs() * 32);

/// An event of the device or the agent.
#[derive(Clone, Debug)]
enum Step {
    Observed(Observation),
    /// The agent restarts from its record.
    Restart,
}

/// Facts of the history, independent of the tracker's state.
#[derive(Debug, Default)]
struct History {
    last_failure: Option<(Timestamp, Reason)>,
    /// True once a probe has passed since the agent's start, at least a quiet period after the last failure.
    has_passed: bool,
}

fn reasons() -> impl Strategy<Value = Reason> {
    let xids = (1..12_u64).prop_map(Reason::Xid);
    prop_oneof![select(vec![Reason::Lost, Reason::Unresponsive, Reason::Vanished]), xids]
}

fn steps() -> impl Strategy<Value = Step> {
    let detail = || "detail".to_owned();
    prop_oneof![
        6 => Just(Step::Observed(Observation::Passed)),
        2 => reasons()
            .prop_map(move |reason| Step::Observed(Observation::Failed(reason, detail()))),
        2 => reasons().prop_map(move |reason| Step::Observed(Observation::Fault(reason, detail()))),
        1 => Just(Step::Observed(Observation::TimedOut(detail()))),
        1 => Just(Step::Observed(Observation::Pending)),
        1 => Just(Step::Restart),
    ]
}

/// Time to the next event: none, short or long.
fn pauses() -> impl Strategy<Value = Duration> {
    prop_oneof![Just(0), 1..90_u64, 90..5000_u64].prop_map(Duration::from_secs)
}

// === impl History ===

impl History {
    fn observe(&mut self, observation: &Observation, before: HealthState, now: Timestamp) {
        let failure = match observation {
            Observation::Failed(reason, _) | Observation::Fault(reason, _) => Some(*reason),
            // The first probe may wake a device.
            Observation::TimedOut(_) if before != HealthState::Unknown => {
                Some(Reason::Unresponsive)
            }
            _ => None,
        };
        match (failure, observation) {
            (Some(reason), _) => {
                *self = Self { last_failure: Some((now, reason)), ..Self::default() }
            }
            (None, Observation::Passed) => self.has_passed |= self.is_quiet_for(QUIET, now),
            (None, _) => {}
        }
    }

    fn is_quiet_for(&self, wait: Duration, now: Timestamp) -> bool {
        self.last_failure.is_none_or(|(failure, _)| now >= failure + wait)
    }
}

/// Guarantees at any time.
fn check(tracker: &HealthTracker, history: &History) -> Result<(), TestCaseError> {
    let health = tracker.health();
    prop_assert!(!health.is_healthy() || history.has_passed, "healthy without a passed probe");
    prop_assert!(health.failures.len() <= MAX_FAILURES);
    if health.state == HealthState::Unhealthy {
        let reported = health.failure().map(|failure| failure.reason);
        prop_assert_eq!(reported, history.last_failure.map(|(_, reason)| reason));
    }
    Ok(())
}

fn resumed(tracker: &HealthTracker, now: Timestamp) -> Result<HealthTracker, TestCaseError> {
    let json = serde_json::to_string(&tracker.record()).expect("a record is written");
    let record = serde_json::from_str(&json).expect("the record parses");
    let next = HealthTracker::resume(record, QUIET, now);
    prop_assert!(!next.health().is_healthy(), "health is unknown after a restart");
    if tracker.health().state == HealthState::Unhealthy {
        prop_assert_eq!(
            next.recovers_at(),
            tracker.recovers_at(),
            "a restart keeps the end of the quiet period"
        );
        prop_assert_eq!(next.health(), tracker.health());
    }
    Ok(next)
}

proptest! {
    #[test]
    fn no_device_is_healthy_without_evidence_and_none_is_lost_for_good(
        events in vec((pauses(), steps()), 1..60),
    ) {
        let mut now = Timestamp::UNIX_EPOCH;
        let (mut tracker, mut history) = (HealthTracker::new(QUIET, now), History::default());
        for (pause, step) in events {
            now += pause;
            match step {
                Step::Restart => {
                    tracker = resumed(&tracker, now)?;
                    history.has_passed = false;
                }
                Step::Observed(observation) => {
                    let before = tracker.health().clone();
                    let changed = tracker.observe(&observation, now);
                    history.observe(&observation, before.state, now);
                    let after = tracker.health();
                    prop_assert_eq!(changed, (before.state != after.state).then_some(before.state));
                    prop_assert_eq!(after.since, if changed.is_some() { now } else { before.since });
                }
            }
            check(&tracker, &history)?;
        }
        now += LONGEST;
        tracker.observe(&Observation::Passed, now);
        prop_assert!(tracker.health().is_healthy(), "still unhealthy after the longest quiet period");
    }
}
