//! Blocks of free GPUs on one node, for the pods that need several.

use crate::{forecast::Count, request::Gpus};

/// The requests for several GPUs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Blocks {
    wanted: Vec<Block>,
}

/// GPUs and CPU of a request for several GPUs.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Block {
    gpus: u32,
    cpu_milli: u32,
    /// Part of all demand for GPUs, from 0 to 1.
    weight: f64,
}

impl Blocks {
    /// The requests that were counted.
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

    /// GPUs of the blocks that the given free GPUs and free CPU of one node can serve, weighted by demand.
    pub fn value(&self, free_gpus: u32, cpu_milli: u32) -> f64 {
        let of = |block: &Block| {
            let blocks = (free_gpus / block.gpus).min(cpu_milli / block.cpu_milli);
            block.weight * f64::from(blocks * block.gpus)
        };
        self.wanted.iter().map(of).sum()
    }
}
