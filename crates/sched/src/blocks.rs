//! Blocks: groups of free GPUs on one node, for pods that need several GPUs.

use crate::{forecast::RequestCount, request::Gpus};

/// Demand for several GPUs on one node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MultiGpuDemand {
    requests: Vec<MultiGpuRequest>,
}

/// GPUs and CPU of a request for several GPUs.
#[derive(Clone, Copy, Debug, PartialEq)]
struct MultiGpuRequest {
    gpus: u32,
    cpu_milli: u32,
    /// Share of all demand for GPUs, from 0 to 1.
    weight: f64,
}

impl MultiGpuDemand {
    /// The demand of the counted requests.
    pub fn of(counts: &[RequestCount]) -> Self {
        let total: f64 = counts.iter().map(RequestCount::demand_milli).sum();
        let block = |it: &RequestCount| match it.request.gpus {
            Gpus::Whole(gpus @ 2..) => Some(MultiGpuRequest {
                gpus: u32::from(gpus),
                cpu_milli: it.request.cpu_milli.max(1),
                weight: it.demand_milli() / total,
            }),
            _ => None,
        };
        Self { requests: counts.iter().filter_map(block).collect() }
    }

    /// Number of GPUs in the blocks that a node with these free resources can serve, weighted by demand.
    pub fn value(&self, free_gpus: u32, cpu_milli: u32) -> f64 {
        let value = |block: &MultiGpuRequest| {
            let count = (free_gpus / block.gpus).min(cpu_milli / block.cpu_milli);
            block.weight * f64::from(count * block.gpus)
        };
        self.requests.iter().map(value).sum()
    }
}
