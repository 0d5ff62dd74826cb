//! Blocks: free GPUs of one node for pods that need several of them.

use crate::{forecast::Count, request::Gpus};

/// Demand for several GPUs on one node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Blocks {
    wanted: Vec<Block>,
}

/// GPUs and CPU of a request for several GPUs.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Block {
    gpus: u32,
    cpu_milli: u32,
    /// Share of all demand for GPUs, from 0 to 1.
    weight: f64,
}

impl Blocks {
    /// The demand of the counted requests.
    pub fn of(counts: &[Count]) -> Self {
        let total: f64 = counts.iter().map(Count::demand_milli).sum();
        let block = |it: &Count| match it.request.gpus {
            Gpus::Whole(gpus @ 2..) => Some(Block {
                gpus: u32::from(gpus),
                cpu_milli: it.request.cpu_milli.max(1),
                weight: it.demand_milli() / total,
            }),
            _ => None,
        };
        Self { wanted: counts.iter().filter_map(block).collect() }
    }

    /// Number of GPUs in the blocks that a node with these free resources can serve, weighted by demand.
    pub fn value(&self, free_gpus: u32, cpu_milli: u32) -> f64 {
        let of = |block: &Block| {
            let blocks = (free_gpus / block.gpus).min(cpu_milli / block.cpu_milli);
            block.weight * f64::from(blocks * block.gpus)
        };
        self.wanted.iter().map(of).sum()
    }
}
