//! Metrics of the extender, and gauges computed from its view.

use std::{fmt, sync::Arc, time::Duration};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _, text},
    metrics::{
        MetricType,
        counter::{ConstCounter, Counter},
        family::Family,
        gauge::ConstGauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::{Registry, Unit},
};
use windlass_host::shared::Shared;
use windlass_sched::{fit::Misfit, request::SizeClass};

use crate::index::{Index, PredictionCounts, Refusal};

/// A verb of the extender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    /// Nodes that can serve a pod.
    Filter,
    /// Scores of the best nodes.
    Prioritize,
    /// Nodes that can serve a pod after evictions.
    Preempt,
    /// Binding of a pod.
    Bind,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AnswerLabels {
    verb: &'static str,
    is_ok: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct VerbLabels {
    verb: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RankLabels {
    was_best: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct GangLabels {
    is_whole: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SizeLabels {
    size: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PredictionLabels {
    is_right: &'static str,
}

/// Counters of the extender.
#[derive(Debug)]
pub(crate) struct Metrics {
    answers: Family<AnswerLabels, Counter>,
    seconds: Family<VerbLabels, Histogram, fn() -> Histogram>,
    refusals: Family<ReasonLabels, Counter>,
    bound_pods: Family<RankLabels, Counter>,
    gangs: Family<GangLabels, Counter>,
}

/// Gauges that each scrape computes from the view.
#[derive(Debug)]
struct ViewGauges(Arc<Shared<Index>>);

/// Values of the gauges.
struct GaugeValues {
    is_synced: bool,
    nodes: usize,
    pods: usize,
    claims: usize,
    gpus: usize,
    idle_gpus: f64,
    fragmentation: f64,
    fragmentation_by_size: Vec<(SizeClass, f64)>,
    conflicts: usize,
    predictions: PredictionCounts,
}

// === impl Verb ===

impl Verb {
    fn name(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Prioritize => "prioritize",
            Self::Preempt => "preempt",
            Self::Bind => "bind",
        }
    }
}

// === impl Metrics ===

impl Metrics {
    /// Registers all metrics.
    pub(crate) fn register(registry: &mut Registry, index: Arc<Shared<Index>>) -> Arc<Self> {
        // From 50 us to 0.8 s.
        let histogram: fn() -> Histogram =
            || Histogram::new(exponential_buckets(0.000_05, 2.0, 15));
        let metrics = Self {
            answers: Family::default(),
            seconds: Family::new_with_constructor(histogram),
            refusals: Family::default(),
            bound_pods: Family::default(),
            gangs: Family::default(),
        };
        registry.register(
            "windlass_cluster_answers",
            "Answers of the extender, by verb",
            metrics.answers.clone(),
        );
        registry.register_with_unit(
            "windlass_cluster_answer",
            "Time of an answer of the extender, by verb",
            Unit::Seconds,
            metrics.seconds.clone(),
        );
        registry.register(
            "windlass_cluster_refusals",
            "Nodes that could not serve a pod, by the first reason",
            metrics.refusals.clone(),
        );
        registry.register(
            "windlass_cluster_bound_pods",
            "Pods bound after a ranking; was_best is true if kube-scheduler took the best node",
            metrics.bound_pods.clone(),
        );
        registry.register(
            "windlass_cluster_gangs",
            "Gangs whose members waited for each other; is_whole is true if all arrived in time",
            metrics.gangs.clone(),
        );
        registry.register_collector(Box::new(ViewGauges(index)));
        for reason in REASONS {
            drop(metrics.refusals.get_or_create(&ReasonLabels { reason }));
        }
        for is_whole in [bool_label(true), bool_label(false)] {
            drop(metrics.gangs.get_or_create(&GangLabels { is_whole }));
        }
        Arc::new(metrics)
    }

    /// Counts a bound pod. `was_best` is true if it is bound to the best node of its ranking.
    pub(crate) fn count_bound_pod(&self, was_best: bool) {
        self.bound_pods.get_or_create(&RankLabels { was_best: bool_label(was_best) }).inc();
    }

    /// Counts a gang whose wait ended. `is_whole` is true if all members arrived, false if the gang was given up.
    pub(crate) fn count_gang(&self, is_whole: bool) {
        self.gangs.get_or_create(&GangLabels { is_whole: bool_label(is_whole) }).inc();
    }

    /// Counts a call of a verb, with its duration.
    pub(crate) fn count_call(&self, verb: Verb, time: Duration, is_ok: bool) {
        let (verb, is_ok) = (verb.name(), bool_label(is_ok));
        self.answers.get_or_create(&AnswerLabels { verb, is_ok }).inc();
        self.seconds.get_or_create(&VerbLabels { verb }).observe(time.as_secs_f64());
    }

    /// Counts a node that cannot serve a pod.
    pub(crate) fn count_refusal(&self, refusal: &Refusal) {
        self.refusals.get_or_create(&ReasonLabels { reason: reason(refusal) }).inc();
    }
}

/// Label value of a boolean.
fn bool_label(value: bool) -> &'static str {
    if value { "true" } else { "false" }
}

/// All values of the label `reason`, created at zero.
const REASONS: [&str; 20] = [
    "bound",
    "cpu",
    "gang",
    "gang_does_not_fit",
    "gang_elsewhere",
    "gang_incomplete",
    "gang_lost_node",
    "gangs_wait",
    "in_doubt",
    "memory",
    "no_agent",
    "no_virtual_gpus",
    "not_accepted",
    "partition",
    "pods",
    "product",
    "share",
    "unknown_node",
    "whole_gpus",
    "wish",
];

fn reason(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::UnknownNode(_) => "unknown_node",
        Refusal::InvalidRequest(_) => "wish",
        Refusal::NoAgent(_) => "no_agent",
        Refusal::NoVirtualGpus(_) => "no_virtual_gpus",
        Refusal::NotAccepted { .. } => "not_accepted",
        Refusal::InvalidGang(_) => "gang",
        Refusal::GangDoesNotFit { .. } => "gang_does_not_fit",
        Refusal::GangPlannedElsewhere(_) => "gang_elsewhere",
        Refusal::GangIncomplete { .. } => "gang_incomplete",
        Refusal::GangLostNode(_) => "gang_lost_node",
        Refusal::TooManyWaiting(_) => "gangs_wait",
        Refusal::AlreadyBound { .. } => "bound",
        Refusal::OutcomeUnknown(_) => "in_doubt",
        Refusal::Misfit(misfit) => match misfit {
            Misfit::Cpu { .. } => "cpu",
            Misfit::Memory { .. } => "memory",
            Misfit::PodLimit => "pods",
            Misfit::Model => "product",
            Misfit::Whole { .. } => "whole_gpus",
            Misfit::Share { .. } | Misfit::Shares { .. } => "share",
            Misfit::Partition => "partition",
        },
    }
}

// === impl GaugeValues ===

impl GaugeValues {
    fn of(index: &mut Index) -> Self {
        let (mut gpus, mut idle_gpus) = (0, 0.0);
        for node in index.node_snapshots() {
            gpus += node.state.gpus.len();
            idle_gpus += f64::from(node.state.idle_milli()) / 1000.0;
        }
        let (nodes, pods) = index.counts();
        Self {
            is_synced: index.is_synced(),
            nodes,
            pods,
            claims: index.claim_count(),
            gpus,
            idle_gpus,
            fragmentation: index.fragmentation(),
            fragmentation_by_size: index.fragmentation_by_size(),
            conflicts: index.conflicts(),
            predictions: index.prediction_counts(),
        }
    }
}

// === impl ViewGauges ===

impl Collector for ViewGauges {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let values = self.0.with_lock(GaugeValues::of);
        let mut gauge = |name: &str, help: &str, value: f64| {
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)
        };
        let number = |count: usize| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
        gauge(
            "windlass_cluster_synced",
            "1 once all objects were read",
            f64::from(u8::from(values.is_synced)),
        )?;
        gauge("windlass_cluster_nodes", "Nodes of the view", number(values.nodes))?;
        gauge(
            "windlass_cluster_pods",
            "Pods of the view that have not ended",
            number(values.pods),
        )?;
        gauge("windlass_cluster_claims", "ResourceClaims of the view", number(values.claims))?;
        gauge("windlass_cluster_gpus", "GPUs of the view", number(values.gpus))?;
        gauge(
            "windlass_cluster_idle_gpus",
            "Healthy GPUs, or parts of them, without a holder",
            values.idle_gpus,
        )?;
        gauge(
            "windlass_cluster_fragmented_gpus",
            "Expected number of idle GPUs that a typical pod cannot use",
            values.fragmentation,
        )?;
        gauge(
            "windlass_cluster_conflicts",
            "Pods and claims that hold more GPUs than their nodes had free for them",
            number(values.conflicts),
        )?;
        encode_sizes(&mut encoder, values.fragmentation_by_size)?;
        encode_predictions(&mut encoder, values.predictions)
    }
}

fn encode_sizes(encoder: &mut DescriptorEncoder<'_>, sizes: Vec<(SizeClass, f64)>) -> fmt::Result {
    let name = "windlass_cluster_unusable_gpus";
    let help = "Expected number of idle GPUs that a typical pod of this size cannot use";
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (size, gpus) in sizes {
        let labels = SizeLabels { size: size.name() };
        ConstGauge::new(gpus).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

fn encode_predictions(
    encoder: &mut DescriptorEncoder<'_>,
    PredictionCounts { right, wrong }: PredictionCounts,
) -> fmt::Result {
    let name = "windlass_cluster_predicted_claims";
    let help = "Claims on a node for which their devices were predicted, by whether they have exactly these";
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (is_right, count) in [(true, right), (false, wrong)] {
        let labels = PredictionLabels { is_right: bool_label(is_right) };
        ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

/// All metrics as OpenMetrics text.
pub(crate) fn encode(registry: &Registry) -> String {
    let mut text = String::new();
    text::encode(&mut text, registry).expect("writing to a String cannot fail");
    text
}
