//! Workloads of the cluster demo, and the order in which their pods arrive.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use windlass_sched::random::Random;

/// Resources of shares of a GPU: memory and compute.
pub(super) const GPU_MEMORY: &str = "windlass.dev/gpu-memory";
pub(super) const GPU_COMPUTE: &str = "windlass.dev/gpu-compute";
/// Resource of whole GPUs.
pub(super) const WHOLE_GPU: &str = "nvidia.com/gpu";

pub(super) const NAMESPACE: &str = "default";

/// A kind of workload.
#[derive(Debug)]
pub(super) struct Workload {
    name: &'static str,
    /// Thousandths of a GPU that a pod requests.
    pub(super) gpu_milli: u32,
    gpus: GpuLimit,
    /// Percentage of all pods.
    percent: usize,
}

#[derive(Debug)]
enum GpuLimit {
    Share { gib: u32, percent: u32 },
    Whole(u32),
}

/// The workloads of a cluster for inference and training.
const WORKLOADS: &[Workload] = &[
    Workload {
        name: "chat",
        gpu_milli: 250,
        gpus: GpuLimit::Share { gib: 5, percent: 25 },
        percent: 30,
    },
    Workload {
        name: "notebook",
        gpu_milli: 500,
        gpus: GpuLimit::Share { gib: 11, percent: 50 },
        percent: 15,
    },
    Workload { name: "serve", gpu_milli: 1000, gpus: GpuLimit::Whole(1), percent: 30 },
    Workload { name: "tune", gpu_milli: 2000, gpus: GpuLimit::Whole(2), percent: 8 },
    Workload { name: "batch", gpu_milli: 4000, gpus: GpuLimit::Whole(4), percent: 5 },
    Workload { name: "train", gpu_milli: 8000, gpus: GpuLimit::Whole(8), percent: 12 },
];

/// Seed of the arrival order, which is the same in each demo.
const SEED: u64 = 1;

/// Draws workloads until they request at least `milli` thousandths of a GPU in total.
pub(super) fn arrivals(milli: u64) -> Vec<&'static Workload> {
    let mut random = Random::new(SEED);
    let (mut requested_milli, mut workloads) = (0, Vec::new());
    while requested_milli < milli {
        let mut number = random.below(WORKLOADS.iter().map(|workload| workload.percent).sum());
        let workload =
            WORKLOADS.iter().find(|workload| match number.checked_sub(workload.percent) {
                Some(remainder) => {
                    number = remainder;
                    false
                }
                None => true,
            });
        let workload = workload.expect("the number is below the sum of the percentages");
        requested_milli += u64::from(workload.gpu_milli);
        workloads.push(workload);
    }
    workloads
}

/// Workloads that request at most one GPU.
pub(super) fn at_most_one_gpu() -> impl Iterator<Item = &'static Workload> {
    WORKLOADS.iter().filter(|workload| workload.gpu_milli <= 1000)
}

// === impl Workload ===

impl Workload {
    /// GPU resource limits of the container.
    pub(super) fn gpu_limits(&self) -> BTreeMap<&'static str, String> {
        match self.gpus {
            GpuLimit::Share { gib, percent } => {
                [(GPU_MEMORY, gib.to_string()), (GPU_COMPUTE, percent.to_string())].into()
            }
            GpuLimit::Whole(count) => [(WHOLE_GPU, count.to_string())].into(),
        }
    }

    /// Pod of the workload, with 8 CPU cores and 128,000 MiB of memory for each GPU.
    pub(super) fn pod(&self, suffix: &str) -> Result<Pod> {
        let mut limits = self.gpu_limits();
        limits.insert("cpu", format!("{}m", self.gpu_milli * 8));
        limits.insert("memory", format!("{}Mi", self.gpu_milli * 128));
        let pod = json!({
            "metadata": {"name": format!("{}-{suffix}", self.name), "namespace": NAMESPACE},
            "spec": {
                "schedulerName": "windlass",
                "containers": [{"name": "main", "image": "i", "resources": {"limits": limits}}],
            },
        });
        serde_json::from_value(pod).context("the pod is not a valid Pod object")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_reach_the_requested_load_in_a_fixed_order() {
        let names =
            |milli| arrivals(milli).iter().map(|workload| workload.name).collect::<Vec<_>>();
        assert_eq!(names(50_000), names(50_000));
        let requested_milli: u64 =
            arrivals(50_000).iter().map(|workload| u64::from(workload.gpu_milli)).sum();
        assert!((50_000..58_000).contains(&requested_milli), "{requested_milli}");
        assert!(WORKLOADS.iter().all(|workload| names(400_000).contains(&workload.name)));
        assert_eq!(WORKLOADS.iter().map(|workload| workload.percent).sum::<usize>(), 100);
    }
}
