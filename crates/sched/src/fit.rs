//! Fit: the ways in which a node can serve a request, or the first reason why it cannot.

use crate::{
    gpu::{Gpu, GpuSet},
    node::{Node, Part, state_after_allocation},
    request::{Gpus, Request, ShareMemory},
    view::Catalog,
};

/// The ways in which a node can serve a request; at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fit {
    /// The request has no GPUs.
    NoGpu,
    /// Any `count` of these free GPUs.
    Whole {
        /// GPUs to choose from.
        free: GpuSet,
        /// Number to choose.
        count: u32,
    },
    /// A share of any `count` of these GPUs.
    Share {
        /// GPUs to choose from.
        gpus: GpuSet,
        /// Number to choose.
        count: u32,
    },
    /// A MIG instance at one of these places.
    Partition(Vec<Part>),
}

/// The first reason why a node cannot serve a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum Misfit {
    /// Too little CPU.
    #[error("{requested_milli}m of CPU requested, {free_milli}m free")]
    Cpu {
        /// Requested, in thousandths of a core.
        requested_milli: u32,
        /// Free, in thousandths of a core.
        free_milli: u32,
    },
    /// Too little memory.
    #[error("{requested_mib} MiB of memory requested, {free_mib} MiB free")]
    Memory {
        /// Requested.
        requested_mib: u32,
        /// Free.
        free_mib: u32,
    },
    /// Maximum number of pods reached.
    #[error("the node has its maximum number of pods")]
    PodLimit,
    /// The node has no GPU of an accepted product.
    #[error("no GPU of a requested product")]
    Model,
    /// Too few free whole GPUs.
    #[error("{requested} whole GPU{} requested, {free} free", plural(*.requested))]
    Whole {
        /// Requested.
        requested: u32,
        /// Free, of an accepted product.
        free: u32,
    },
    /// No GPU has enough free for the share.
    #[error(
        "{compute_milli} thousandths and {memory} of one GPU requested; no GPU has as much free"
    )]
    Share {
        /// Requested compute, in thousandths.
        compute_milli: u16,
        /// Requested memory.
        memory: ShareMemory,
    },
    /// Too few GPUs have enough free for the shares.
    #[error(
        "{compute_milli} thousandths and {memory} of each of {requested} GPUs requested; {free} have as much free"
    )]
    Shares {
        /// Requested compute, in thousandths.
        compute_milli: u16,
        /// Requested memory.
        memory: ShareMemory,
        /// Requested number of GPUs.
        requested: u32,
        /// Number of GPUs with enough free.
        free: u32,
    },
    /// No GPU has a free place for the MIG instance.
    #[error("no GPU has a free place for the MIG profile")]
    Partition,
}

fn plural(count: u32) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// Finds the ways in which the node can serve the request.
pub fn fit(catalog: &Catalog, node: &Node, request: &Request) -> Result<Fit, Misfit> {
    if request.cpu_milli > node.cpu_milli.free {
        let (requested_milli, free_milli) = (request.cpu_milli, node.cpu_milli.free);
        return Err(Misfit::Cpu { requested_milli, free_milli });
    }
    if request.memory_mib > node.memory_mib.free {
        let (requested_mib, free_mib) = (request.memory_mib, node.memory_mib.free);
        return Err(Misfit::Memory { requested_mib, free_mib });
    }
    if node.pods.free == 0 {
        return Err(Misfit::PodLimit);
    }
    gpus(catalog, node, request)
}

fn gpus(catalog: &Catalog, node: &Node, request: &Request) -> Result<Fit, Misfit> {
    let is_accepted = |gpu: &Gpu| request.models.contains(gpu.model);
    if request.gpus != Gpus::None && !node.gpus.iter().any(is_accepted) {
        return Err(Misfit::Model);
    }
    let serving_gpus = node.gpus_where(|gpu| serves(catalog, gpu, request));
    match request.gpus {
        Gpus::None => Ok(Fit::NoGpu),
        Gpus::Whole(count) => {
            let count = u32::from(count);
            let suffices = serving_gpus.len() >= count;
            suffices
                .then_some(Fit::Whole { free: serving_gpus, count })
                .ok_or(Misfit::Whole { requested: count, free: serving_gpus.len() })
        }
        Gpus::Share { count, compute_milli, memory } => {
            let (requested, free) = (u32::from(count), serving_gpus.len());
            match requested {
                _ if free >= requested.max(1) => {
                    Ok(Fit::Share { gpus: serving_gpus, count: requested })
                }
                0 | 1 => Err(Misfit::Share { compute_milli, memory }),
                _ => Err(Misfit::Shares { compute_milli, memory, requested, free }),
            }
        }
        Gpus::Partition(profile) => {
            let places = |position: usize| {
                let gpu = &node.gpus[position];
                let places = catalog.places(gpu.model, profile).iter();
                places.filter(|place| state_after_allocation(gpu, request, **place).is_some()).map(
                    move |place| Part { gpus: GpuSet::single(position), memory_slices: *place },
                )
            };
            let places: Vec<_> = serving_gpus.iter().flat_map(places).collect();
            (!places.is_empty()).then_some(Fit::Partition(places)).ok_or(Misfit::Partition)
        }
    }
}

/// True if the GPU can be one of those that serve the request.
pub fn serves(catalog: &Catalog, gpu: &Gpu, request: &Request) -> bool {
    if !gpu.is_usable || !request.models.contains(gpu.model) {
        return false;
    }
    match request.gpus {
        Gpus::None => false,
        Gpus::Whole(_) | Gpus::Share { .. } => state_after_allocation(gpu, request, 0).is_some(),
        Gpus::Partition(profile) => {
            let mut places = catalog.places(gpu.model, profile).iter();
            places.any(|place| state_after_allocation(gpu, request, *place).is_some())
        }
    }
}
