//! Metrics of the cleanup: duration and outcome of the work, and devices by state.

use std::fmt;

use prometheus_client::{
    metrics::{family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};
use tokio::time::Instant;
use windlass_host::counters::{CounterFamily, Labels};

use crate::cleanup::State;

/// Metrics of the cleanup.
#[derive(Clone)]
pub struct CleanupMetrics {
    seconds: Family<Labels, Histogram, fn() -> Histogram>,
    outcomes: CounterFamily,
    devices: Family<Labels, Gauge>,
}

/// A running measurement. A timer that is dropped, as at the agent's end, counts nothing.
pub(crate) struct Timer {
    metrics: CleanupMetrics,
    work: &'static str,
    started_at: Instant,
}

/// Histogram bounds: from a file write to the kubelet's deadline, and beyond it for steps without a waiting caller.
const BOUNDS_SECONDS: [f64; 8] = [0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 25.0, 120.0];

/// Kinds of work: the steps before a container's start, and those after a release.
const WORK_KINDS: [&str; 2] = ["prepare", "release"];

// === impl CleanupMetrics ===

impl CleanupMetrics {
    /// Registers the metrics. Their names call the cleanup a handover.
    pub fn register(registry: &mut Registry) -> Self {
        let seconds =
            Family::new_with_constructor((|| Histogram::new(BOUNDS_SECONDS)) as fn() -> Histogram);
        let metrics =
            Self { seconds, outcomes: CounterFamily::default(), devices: Family::default() };
        let help = "Time that the steps between two containers took";
        registry.register_with_unit("handover", help, Unit::Seconds, metrics.seconds.clone());
        let help = "Steps before a container's start and after a release, by outcome";
        registry.register("handover_outcomes", help, metrics.outcomes.clone());
        let help = "Devices with cleanup steps, by state";
        registry.register("handover_devices", help, metrics.devices.clone());
        // All label values exist from the start, at zero.
        for work in WORK_KINDS {
            for result in ["done", "failed"] {
                metrics.outcomes.get_or_create_owned(&outcome_labels(work, result));
            }
        }
        metrics.set_states([]);
        metrics
    }

    /// Starts a measurement.
    pub(crate) fn start_timer(&self, work: &'static str) -> Timer {
        Timer { metrics: self.clone(), work, started_at: Instant::now() }
    }

    /// Sets the number of devices in each state, from the states of all devices.
    pub(crate) fn set_states(&self, states: impl IntoIterator<Item = &'static str>) {
        let states: Vec<_> = states.into_iter().collect();
        for &name in State::NAMES {
            let count = states.iter().filter(|state| **state == name).count();
            let gauge = self.devices.get_or_create_owned(&vec![("state", name.to_owned())]);
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
}

impl fmt::Debug for CleanupMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CleanupMetrics").finish_non_exhaustive()
    }
}

// === impl Timer ===

impl Timer {
    /// Counts the outcome and returns it.
    pub(crate) fn observe<T, E>(self, result: Result<T, E>) -> Result<T, E> {
        let Self { metrics, work, started_at } = self;
        let labels = vec![("work", work.to_owned())];
        metrics.seconds.get_or_create_owned(&labels).observe(started_at.elapsed().as_secs_f64());
        let result_label = if result.is_ok() { "done" } else { "failed" };
        metrics.outcomes.get_or_create_owned(&outcome_labels(work, result_label)).inc();
        result
    }
}

fn outcome_labels(work: &str, result: &str) -> Labels {
    vec![("result", result.to_owned()), ("work", work.to_owned())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_counted_by_state_and_outcomes_by_work() {
        let mut registry = Registry::default();
        let metrics = CleanupMetrics::register(&mut registry);
        metrics.set_states(["clean", "quarantined", "clean"]);
        assert_eq!(metrics.start_timer("prepare").observe::<_, ()>(Ok(1)), Ok(1));
        assert_eq!(metrics.start_timer("release").observe::<(), _>(Err("late")), Err("late"));
        let mut page = String::new();
        prometheus_client::encoding::text::encode(&mut page, &registry).expect("written");
        for line in [
            r#"handover_devices{state="clean"} 2"#,
            r#"handover_devices{state="quarantined"} 1"#,
            r#"handover_devices{state="in_use"} 0"#,
            r#"handover_outcomes_total{result="done",work="prepare"} 1"#,
            r#"handover_outcomes_total{result="failed",work="release"} 1"#,
            r#"handover_outcomes_total{result="failed",work="prepare"} 0"#,
            r#"handover_seconds_count{work="release"} 1"#,
        ] {
            assert!(page.contains(line), "{line}\n{page}");
        }
    }
}
