//! Pods that come to the cluster.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use windlass_sched::random::Random;

/// Resources of shares.
pub(super) const MEMORY: &str = "windlass.dev/gpu-memory";
pub(super) const COMPUTE: &str = "windlass.dev/gpu-compute";
/// Resource of whole GPUs.
pub(super) const WHOLE: &str = "nvidia.com/gpu";

pub(super) const NAMESPACE: &str = "default";

/// A kind of workload.
#[derive(Debug)]
pub(super) struct Kind {
    name: &'static str,
    /// Thousandths of GPUs that a pod asks for.
    pub(super) milli: u32,
    gpus: GpuLimit,
    /// Such pods of a hundred.
    percent: usize,
}

#[derive(Debug)]
enum GpuLimit {
    Share { gib: u32, percent: u32 },
    Whole(u32),
}

/// The workloads of a cluster for inference and training.
const KINDS: &[Kind] = &[
    Kind { name: "chat", milli: 250, gpus: GpuLimit::Share { gib: 5, percent: 25 }, percent: 30 },
    Kind {
        name: "notebook",
        milli: 500,
        gpus: GpuLimit::Share { gib: 11, percent: 50 },
        percent: 15,
    },
    Kind { name: "serve", milli: 1000, gpus: GpuLimit::Whole(1), percent: 30 },
    Kind { name: "tune", milli: 2000, gpus: GpuLimit::Whole(2), percent: 8 },
    Kind { name: "batch", milli: 4000, gpus: GpuLimit::Whole(4), percent: 5 },
    Kind { name: "train", milli: 8000, gpus: GpuLimit::Whole(8), percent: 12 },
];

/// Order of the pods, the same in each demo.
const SEED: u64 = 1;

/// Draws kinds until they ask for this many thousandths of GPUs.
pub(super) fn arrivals(milli: u64) -> Vec<&'static Kind> {
    let mut random = Random::new(SEED);
    let (mut asked, mut kinds) = (0, Vec::new());
    while asked < milli {
        let mut number = random.below(KINDS.iter().map(|kind| kind.percent).sum());
        let kind = KINDS.iter().find(|kind| match number.checked_sub(kind.percent) {
            Some(rest) => {
                number = rest;
                false
            }
            None => true,
        });
        let kind = kind.expect("a number below the sum of all");
        asked += u64::from(kind.milli);
        kinds.push(kind);
    }
    kinds
}

/// The kinds that ask for at most one GPU.
pub(super) fn at_most_one_gpu() -> impl Iterator<Item = &'static Kind> {
    KINDS.iter().filter(|kind| kind.milli <= 1000)
}

// === impl Kind ===

impl Kind {
    /// Resources of the GPUs, as the pod's specification has them.
    pub(super) fn gpu_limits(&self) -> BTreeMap<&'static str, String> {
        match self.gpus {
            GpuLimit::Share { gib, percent } => {
                [(MEMORY, gib.to_string()), (COMPUTE, percent.to_string())].into()
            }
            GpuLimit::Whole(count) => [(WHOLE, count.to_string())].into(),
        }
    }

    /// A pod of the kind, with 8 cores and 128 GiB for each GPU.
    pub(super) fn pod(&self, suffix: &str) -> Result<Pod> {
        let mut limits = self.gpu_limits();
        limits.insert("cpu", format!("{}m", self.milli * 8));
        limits.insert("memory", format!("{}Mi", self.milli * 128));
        let pod = json!({
            "metadata": {"name": format!("{}-{suffix}", self.name), "namespace": NAMESPACE},
            "spec": {
                "schedulerName": "windlass",
                "containers": [{"name": "main", "image": "i", "resources": {"limits": limits}}],
            },
        });
        serde_json::from_value(pod).context("a Pod has another shape")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_ask_for_what_is_wanted_and_come_in_one_order() {
        let names = |milli| arrivals(milli).iter().map(|kind| kind.name).collect::<Vec<_>>();
        assert_eq!(names(50_000), names(50_000));
        let asked: u64 = arrivals(50_000).iter().map(|kind| u64::from(kind.milli)).sum();
        assert!((50_000..58_000).contains(&asked), "{asked}");
        assert!(KINDS.iter().all(|kind| names(400_000).contains(&kind.name)));
        assert_eq!(KINDS.iter().map(|kind| kind.percent).sum::<usize>(), 100);
    }
}
