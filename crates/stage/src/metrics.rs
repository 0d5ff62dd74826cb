//! Prometheus metrics of one stage or source.

use std::borrow::Cow;

use prometheus_client::{
    encoding::{EncodeLabelSet, LabelSetEncoder},
    metrics::{
        counter::Counter,
        family::{Family, MetricConstructor},
        gauge::Gauge,
        histogram::Histogram,
    },
    registry::{Registry, Unit},
};
use tokio::time::{Duration, Instant};

use crate::{failure::FailureKind, item::Body, queued::Queued};

/// Metrics of one stage or source. They count even if they are not registered.
#[derive(Clone, Debug)]
pub struct StageMetrics {
    items: Family<Label, Counter>,
    failures: Family<Label, Counter>,
    times: Family<Label, Histogram, LatencyHistogram>,
    queue: Gauge,
    replicas: Family<Label, Gauge>,
    /// Members of `items`, cached: every item uses them.
    outcomes: [Counter; OUTCOMES.len()],
    /// Members of `times`, cached.
    phases: [Histogram; PHASES.len()],
}

/// Outcome of an item at one stage.
#[derive(Clone, Copy)]
enum Outcome {
    Processed,
    Failed,
    Forwarded,
}

/// Phase of an item's time at one stage.
#[derive(Clone, Copy)]
enum Phase {
    Link,
    Queueing,
    Processing,
    Sending,
}

/// A label with its value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Label(&'static str, Cow<'static, str>);

/// Constructor of histograms with buckets from 50 microseconds to 100 seconds.
#[derive(Clone, Debug)]
struct LatencyHistogram;

/// Upper bounds of the buckets in seconds: 1, 2.5 and 5 per decade.
const BUCKETS: [f64; 20] = [
    5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0, 25.0, 50.0, 100.0,
];

/// Label values of [`Outcome`], in the order of its variants.
const OUTCOMES: [&str; 3] = ["worked", "failed", "passed_on"];

/// Label values of [`Phase`], in the order of its variants.
const PHASES: [&str; 4] = ["link", "waited", "worked", "sending"];

// === impl StageMetrics ===

impl StageMetrics {
    /// Makes metrics with every known label value at zero.
    pub fn new() -> Self {
        let (items, failures) = (Family::<Label, Counter>::default(), Family::default());
        let times = Family::new_with_constructor(LatencyHistogram);
        let outcome = |name| items.get_or_create_owned(&Label::new("result", name));
        let phase = |name| times.get_or_create_owned(&Label::new("part", name));
        let (outcomes, phases) = (OUTCOMES.map(outcome), PHASES.map(phase));
        for kind in FailureKind::ALL {
            drop(failures.get_or_create(&Label::new("reason", kind.as_str())));
        }
        let (queue, replicas) = (Gauge::default(), Family::default());
        Self { items, failures, times, queue, replicas, outcomes, phases }
    }

    /// Registers all metrics.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "windlass_stage_items",
            "Items that left this stage's queue, by outcome: worked, failed here, or passed on as an earlier failure",
            self.items.clone(),
        );
        registry.register(
            "windlass_stage_failures",
            "Failures that this process made, by reason",
            self.failures.clone(),
        );
        registry.register_with_unit(
            "windlass_stage_time",
            "Time of items at this stage, by part: on the link to it, in the queue, in the work function, waiting for the next stage",
            Unit::Seconds,
            self.times.clone(),
        );
        registry.register("windlass_stage_queue_items", "Items in the queue", self.queue.clone());
        registry.register(
            "windlass_stage_connected_replicas",
            "Replicas of each next stage with an open stream",
            self.replicas.clone(),
        );
    }

    pub(crate) fn set_queue_length(&self, items: usize) {
        self.queue.set(i64::try_from(items).unwrap_or(i64::MAX));
    }

    pub(crate) fn record_batch(&self, started: Instant, ended: Instant, batch: &[Queued]) {
        for item in batch {
            self.record_time(Phase::Link, item.link);
            self.record_time(Phase::Queueing, started.duration_since(item.arrived));
            if item.parts.is_ok() {
                self.record_time(Phase::Processing, ended.duration_since(started));
            }
        }
    }

    pub(crate) fn count_item(&self, body: &Body, was_processed: bool) {
        let outcome = match body {
            Body::Payload(_) => Outcome::Processed,
            Body::Failure(_) if was_processed => Outcome::Failed,
            Body::Failure(_) => Outcome::Forwarded,
        };
        self.outcomes[outcome as usize].inc();
    }

    pub(crate) fn record_sending(&self, time: Duration) {
        self.record_time(Phase::Sending, time);
    }

    pub(crate) fn count_failure(&self, kind: FailureKind) {
        self.failures.get_or_create(&Label::new("reason", kind.as_str())).inc();
    }

    pub(crate) fn set_connected(&self, next: &str, replicas: usize) {
        let gauge = self.replicas.get_or_create(&Label::new("next", next.to_owned()));
        gauge.set(i64::try_from(replicas).unwrap_or(i64::MAX));
    }

    fn record_time(&self, phase: Phase, time: Duration) {
        self.phases[phase as usize].observe(time.as_secs_f64());
    }
}

impl Default for StageMetrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Label {
    fn new(name: &'static str, value: impl Into<Cow<'static, str>>) -> Self {
        Self(name, value.into())
    }
}

impl EncodeLabelSet for Label {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> Result<(), std::fmt::Error> {
        [(self.0, &*self.1)].encode(encoder)
    }
}

impl MetricConstructor<Histogram> for LatencyHistogram {
    fn new_metric(&self) -> Histogram {
        Histogram::new(BUCKETS)
    }
}
