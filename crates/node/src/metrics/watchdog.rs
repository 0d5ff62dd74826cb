//! Metrics of shared GPUs: limits and use of memory, shares and use of time, and violations.

use std::{collections::BTreeMap, fmt, sync::Arc};

use prometheus_client::{
    collector::Collector, encoding::DescriptorEncoder, metrics::counter::Counter,
    registry::Registry,
};
use tokio::sync::watch;
use windlass_core::{device::DeviceId, enforcement::Enforcement};
use windlass_host::counters::Labels;

use super::{
    family::{FamilyDescriptor, Value},
    labeled_counter::LabeledCounter,
};

/// Shared GPUs.
pub(crate) type SharedGpus = BTreeMap<DeviceId, SharedGpu>;

/// A shared GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SharedGpu {
    /// False while its processes cannot be read.
    pub(crate) is_measured: bool,
    /// Memory that the driver attributes to no process; `None` if the driver does not report it.
    pub(crate) uncounted_bytes: Option<u64>,
    /// Limits of the holders.
    pub(crate) limits: Vec<HolderLimit>,
    /// Memory of the containers.
    pub(crate) containers: Vec<ContainerUse>,
}

/// Limit of a claim, or of a pod with a share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HolderLimit {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// True for a claim.
    pub(crate) is_claim: bool,
    /// Memory in MiB; 0 for a holder of compute alone.
    pub(crate) mib: u64,
    /// Requested compute, in percent of the GPU; 0 is no request.
    pub(crate) compute_percent: u32,
    /// The strongest enforcement that the node verified.
    pub(crate) enforcement: Enforcement,
}

/// Use of a GPU by a container with a share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ContainerUse {
    /// Namespace and name of the pod. Until the API server reports them, the name is the UID.
    pub(crate) namespace: String,
    pub(crate) pod: String,
    /// Name of the container, or its id.
    pub(crate) container: String,
    pub(crate) bytes: u64,
    /// Time in which its CUDA kernels ran, in percent of the GPU's time, if the driver measures it.
    pub(crate) compute_percent: Option<u32>,
}

/// Counters of violations; clones share them.
#[derive(Clone, Debug)]
pub(crate) struct WatchdogMetrics {
    violations: LabeledCounter,
    compute_excesses: Counter,
}

/// Collector of limits and use of shared GPUs.
#[derive(Debug)]
pub(crate) struct SharedGpuCollector {
    pub(crate) memory: watch::Receiver<Arc<SharedGpus>>,
    /// True if names of pods may be shown.
    pub(crate) shows_pods: bool,
}

const MEASURED: FamilyDescriptor = FamilyDescriptor::new(
    "shared_gpu_measured",
    "1 if the memory of the pods on a shared GPU is measured",
);
const UNCOUNTED: FamilyDescriptor = FamilyDescriptor::new(
    "shared_gpu_uncounted",
    "Memory in use on a shared GPU that its driver counts for no process",
)
.with_unit("bytes");
const LIMIT: FamilyDescriptor =
    FamilyDescriptor::new("share_memory_limit", "Memory that a holder may use of a GPU")
        .with_unit("bytes");
const USED: FamilyDescriptor = FamilyDescriptor::new(
    "share_memory_used",
    "Memory that a container with a share uses of a GPU",
)
.with_unit("bytes");

const COMPUTE_REQUESTED: FamilyDescriptor = FamilyDescriptor::new(
    "share_compute_requested",
    "Part of a GPU's time that a holder asked for",
)
.with_unit("ratio");
const COMPUTE_USED: FamilyDescriptor = FamilyDescriptor::new(
    "share_compute_used",
    "Part of a GPU's time in which kernels of a container with a share ran",
)
.with_unit("ratio");

const MIB: u64 = 1 << 20;

// === impl WatchdogMetrics ===

impl WatchdogMetrics {
    /// Registers the counters.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let help = "Times that a holder used more GPU memory than its share, by action";
        let actions = ["observe", "evict", "kill"];
        let violations =
            LabeledCounter::register(registry, "share_memory_violations", help, "action", &actions);
        let compute_excesses = Counter::default();
        let help = "Times that a holder used far more of a busy GPU's time than its share";
        registry.register("share_compute_excesses", help, compute_excesses.clone());
        Self { violations, compute_excesses }
    }

    /// Counts a violation.
    pub(crate) fn count_violation(&self, action: &'static str) {
        self.violations.inc(action);
    }

    /// Counts a holder that used far more of a GPU's time than its share.
    pub(crate) fn count_compute_excess(&self) {
        self.compute_excesses.inc();
    }
}

// === impl SharedGpuCollector ===

impl Collector for SharedGpuCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let memory = self.memory.borrow().clone();
        let measured = memory
            .iter()
            .map(|(id, gpu)| (vec![("device", id.to_string())], gpu.is_measured.into()));
        MEASURED.gauges(&mut encoder, measured)?;
        let uncounted = memory.iter().filter_map(|(id, gpu)| {
            Some((vec![("device", id.to_string())], Value::Integer(gpu.uncounted_bytes?)))
        });
        UNCOUNTED.gauges(&mut encoder, uncounted)?;
        if !self.shows_pods {
            return Ok(());
        }
        let limits =
            || memory.iter().flat_map(|(id, gpu)| gpu.limits.iter().map(move |limit| (id, limit)));
        let memory_limits = limits().filter(|(_, limit)| limit.mib > 0).map(|(id, limit)| {
            let enforcement = ("enforcement", limit.enforcement.as_str().to_owned());
            let labels = limit.labels(id).into_iter().chain([enforcement]);
            (labels.collect(), limit.mib.saturating_mul(MIB))
        });
        LIMIT.gauges(&mut encoder, summed(memory_limits).map(integer))?;
        let containers = || {
            memory.iter().flat_map(|(id, gpu)| gpu.containers.iter().map(move |usage| (id, usage)))
        };
        let memory_used = containers().map(|(id, usage)| (usage.labels(id), usage.bytes));
        USED.gauges(&mut encoder, summed(memory_used).map(integer))?;
        let with_request = limits().filter(|(_, limit)| limit.compute_percent > 0);
        let shares =
            with_request.map(|(id, limit)| (limit.labels(id), limit.compute_percent.into()));
        COMPUTE_REQUESTED.gauges(&mut encoder, summed(shares).map(ratio))?;
        let compute_used = containers()
            .filter_map(|(id, usage)| Some((usage.labels(id), usage.compute_percent?.into())));
        COMPUTE_USED.gauges(&mut encoder, summed(compute_used).map(ratio))
    }
}

// === impl HolderLimit ===

impl HolderLimit {
    fn labels(&self, gpu: &DeviceId) -> Labels {
        let kind = if self.is_claim { "claim" } else { "pod" };
        vec![
            ("device", gpu.to_string()),
            ("namespace", self.namespace.clone()),
            ("kind", kind.to_owned()),
            ("holder", self.name.clone()),
        ]
    }
}

// === impl ContainerUse ===

impl ContainerUse {
    fn labels(&self, gpu: &DeviceId) -> Labels {
        vec![
            ("device", gpu.to_string()),
            ("namespace", self.namespace.clone()),
            ("pod", self.pod.clone()),
            ("container", self.container.clone()),
        ]
    }
}

fn integer((labels, value): (Labels, u64)) -> (Labels, Value) {
    (labels, Value::Integer(value))
}

/// A ratio from 0 to 1, from percent.
#[expect(clippy::cast_precision_loss, reason = "percentages are small")]
fn ratio((labels, percent): (Labels, u64)) -> (Labels, Value) {
    (labels, Value::Float(percent as f64 / 100.0))
}

/// One line per set of labels: an ended pod and its successor may have the same.
fn summed(lines: impl Iterator<Item = (Labels, u64)>) -> impl Iterator<Item = (Labels, u64)> {
    let mut sums: BTreeMap<Labels, u64> = BTreeMap::new();
    for (labels, value) in lines {
        let sum = sums.entry(labels).or_default();
        *sum = sum.saturating_add(value);
    }
    sums.into_iter()
}
