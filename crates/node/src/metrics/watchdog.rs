//! Metrics of shared GPUs: limits and use of memory, and violations.

use std::{collections::BTreeMap, fmt, sync::Arc};

use prometheus_client::{collector::Collector, encoding::DescriptorEncoder, registry::Registry};
use tokio::sync::watch;
use windlass_core::{device::DeviceId, enforcement::Enforcement};
use windlass_host::counters::Labels;

use super::{
    counted::Counted,
    family::{FamilyHead, Value},
};

/// Shared GPUs.
pub(crate) type SharedGpus = BTreeMap<DeviceId, SharedGpu>;

/// A shared GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SharedGpu {
    /// False while its processes cannot be read.
    pub(crate) is_measured: bool,
    /// Limits of the holders.
    pub(crate) limits: Vec<HolderLimit>,
    /// Memory of the containers.
    pub(crate) containers: Vec<ContainerMemory>,
}

/// Limit of a claim, or of a pod with a share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HolderLimit {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// True for a claim.
    pub(crate) is_claim: bool,
    /// In MiB.
    pub(crate) mib: u64,
    /// The strongest means against excess that was seen to work.
    pub(crate) by: Enforcement,
}

/// Memory that a container with a limit uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ContainerMemory {
    /// Namespace and name of the pod; its UID alone while the API server has not told them.
    pub(crate) namespace: String,
    pub(crate) pod: String,
    /// Name of the container, or its id.
    pub(crate) container: String,
    pub(crate) bytes: u64,
}

/// Counter of violations; clones share it.
#[derive(Clone, Debug)]
pub(crate) struct WatchdogMetrics(Counted);

/// Writer of the memory on shared GPUs.
#[derive(Debug)]
pub(crate) struct SharedGpuCollector {
    pub(crate) memory: watch::Receiver<Arc<SharedGpus>>,
    /// True if names of pods may be shown.
    pub(crate) shows_pods: bool,
}

const MEASURED: FamilyHead = FamilyHead::new(
    "shared_gpu_measured",
    "1 if the memory of the pods on a shared GPU is measured",
);
const LIMIT: FamilyHead =
    FamilyHead::new("share_memory_limit", "Memory that a holder may use of a GPU")
        .with_unit("bytes");
const USED: FamilyHead =
    FamilyHead::new("share_memory_used", "Memory that a container with a share uses of a GPU")
        .with_unit("bytes");

const MIB: u64 = 1 << 20;

// === impl WatchdogMetrics ===

impl WatchdogMetrics {
    /// Registers the counter.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let help = "Uses of more memory of a GPU than a share has, by action";
        let actions = ["observe", "evict", "kill"];
        Self(Counted::register(registry, "share_memory_violations", help, "action", &actions))
    }

    /// Counts a violation.
    pub(crate) fn violated(&self, action: &'static str) {
        self.0.count(action);
    }
}

// === impl SharedGpuCollector ===

impl Collector for SharedGpuCollector {
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> fmt::Result {
        let memory = self.memory.borrow().clone();
        let device = |id: &DeviceId| ("device", id.to_string());
        let measured = memory.iter().map(|(id, gpu)| (vec![device(id)], gpu.is_measured.into()));
        MEASURED.gauges(&mut to, measured)?;
        if !self.shows_pods {
            return Ok(());
        }
        let limits = memory.iter().flat_map(|(id, gpu)| {
            gpu.limits.iter().map(move |limit| {
                let kind = if limit.is_claim { "claim" } else { "pod" };
                let by = limit.by.word();
                let labels = vec![
                    device(id),
                    ("namespace", limit.namespace.clone()),
                    ("kind", kind.to_owned()),
                    ("holder", limit.name.clone()),
                    ("enforcement", by.to_owned()),
                ];
                (labels, limit.mib.saturating_mul(MIB))
            })
        });
        LIMIT.gauges(&mut to, summed(limits))?;
        let used = memory.iter().flat_map(|(id, gpu)| {
            gpu.containers.iter().map(move |used| {
                let labels = vec![
                    device(id),
                    ("namespace", used.namespace.clone()),
                    ("pod", used.pod.clone()),
                    ("container", used.container.clone()),
                ];
                (labels, used.bytes)
            })
        });
        USED.gauges(&mut to, summed(used))
    }
}

/// One line per set of labels: an ended pod and its successor may have the same.
fn summed(lines: impl Iterator<Item = (Labels, u64)>) -> impl Iterator<Item = (Labels, Value)> {
    let mut all: BTreeMap<Labels, u64> = BTreeMap::new();
    for (labels, value) in lines {
        let sum = all.entry(labels).or_default();
        *sum = sum.saturating_add(value);
    }
    all.into_iter().map(|(labels, sum)| (labels, Value::Whole(sum)))
}
