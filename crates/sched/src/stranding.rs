//! Stranding: idle GPUs that a node cannot allocate because its CPU is used up.

use crate::forecast::RequestCount;

/// CPU per idle GPU that a node should keep free, as a fraction of the mean request's CPU per GPU.
///
/// Most traces allocate the most GPUs with 0.7 to 0.9: pods that need less than the mean can still use such a node.
/// With two thirds or less, GPUs are stranded; with more than 0.9, pods avoid nodes that would suffice.
const CPU_RESERVE_FRACTION: f64 = 0.75;

/// CPU demand of pods with GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stranding {
    /// Thousandths of a core per idle GPU that a node should keep free.
    cpu_milli_per_gpu: f64,
}

impl Stranding {
    /// The demand of the counted requests.
    pub fn of(counts: &[RequestCount]) -> Self {
        let (mut cpu, mut gpus) = (0.0, 0.0);
        for count in counts.iter().filter(|it| it.gpu_milli > 0) {
            cpu += f64::from(count.request.cpu_milli) * count.pods;
            gpus += count.demand_milli() / 1000.0;
        }
        let mean = if gpus > 0.0 { cpu / gpus } else { 0.0 };
        Self { cpu_milli_per_gpu: CPU_RESERVE_FRACTION * mean }
    }

    /// Number of idle GPUs, possibly fractional, for which the free CPU does not suffice.
    pub fn stranded_gpus(&self, idle_milli: u32, cpu_milli: u32) -> f64 {
        if self.cpu_milli_per_gpu == 0.0 {
            return 0.0;
        }
        let served_gpus = f64::from(cpu_milli) / self.cpu_milli_per_gpu;
        (f64::from(idle_milli) / 1000.0 - served_gpus).max(0.0)
    }
}
