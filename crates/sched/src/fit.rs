//! The test that a node can serve a request, and the first reason where it cannot.

use crate::{
    gpu::{Gpu, GpuSet},
    node::{Node, Part, taken},
    request::{Gpus, Request, ShareMemory},
    view::Catalog,
};

/// The ways in which a node can serve a request; at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fit {
    /// The request has no GPU.
    Node,
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
    /// An instance at one of these places.
    Partition(Vec<Part>),
}

/// The first reason why a node cannot serve a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum Misfit {
    /// Processor time.
    #[error("{wanted_milli}m of CPU wanted, {free_milli}m free")]
    Cpu {
        /// Asked for, in thousandths of a core.
        wanted_milli: u32,
        /// Free, in thousandths of a core.
        free_milli: u32,
    },
    /// Main memory.
    #[error("{wanted_mib} MiB of memory wanted, {free_mib} MiB free")]
    Memory {
        /// Asked for.
        wanted_mib: u32,
        /// Free.
        free_mib: u32,
    },
    /// The node's number of pods.
    #[error("the node has all the pods that it may have")]
    Pods,
    /// No GPU of a wanted product.
    #[error("no GPU of a wanted product")]
    Model,
    /// Whole GPUs.
    #[error("{wanted} whole GPU{} wanted, {free} free", plural(*.wanted))]
    Whole {
        /// Asked for.
        wanted: u32,
        /// Free, of a wanted product.
        free: u32,
    },
    /// A share of one GPU.
    #[error("{milli} thousandths and {memory} of one GPU wanted; no GPU has as much free")]
    Share {
        /// Compute asked for, in thousandths.
        milli: u16,
        /// Memory asked for.
        memory: ShareMemory,
    },
    /// A share of each of several GPUs.
    #[error(
        "{milli} thousandths and {memory} of each of {wanted} GPUs wanted; {free} have as much free"
    )]
    Shares {
        /// Compute asked for, in thousandths.
        milli: u16,
        /// Memory asked for.
        memory: ShareMemory,
        /// GPUs asked for.
        wanted: u32,
        /// GPUs that have as much free.
        free: u32,
    },
    /// A MIG instance.
    #[error("no GPU has a free place for the MIG profile")]
    Partition,
}

fn plural(count: u32) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// Finds the ways in which the node can serve the request.
pub fn fit(catalog: &Catalog, node: &Node, request: &Request) -> Result<Fit, Misfit> {
    if request.cpu_milli > node.cpu_milli.free {
        let (wanted_milli, free_milli) = (request.cpu_milli, node.cpu_milli.free);
        return Err(Misfit::Cpu { wanted_milli, free_milli });
    }
    if request.memory_mib > node.memory_mib.free {
        let (wanted_mib, free_mib) = (request.memory_mib, node.memory_mib.free);
        return Err(Misfit::Memory { wanted_mib, free_mib });
    }
    if node.pods.free == 0 {
        return Err(Misfit::Pods);
    }
    gpus(catalog, node, request)
}

fn gpus(catalog: &Catalog, node: &Node, request: &Request) -> Result<Fit, Misfit> {
    let is_wanted = |gpu: &Gpu| request.models.has(gpu.model);
    if request.gpus != Gpus::None && !node.gpus.iter().any(is_wanted) {
        return Err(Misfit::Model);
    }
    let serving = node.gpus_that(|gpu| serves(catalog, gpu, request));
    match request.gpus {
        Gpus::None => Ok(Fit::Node),
        Gpus::Whole(count) => {
            let count = u32::from(count);
            let enough = serving.len() >= count;
            enough
                .then_some(Fit::Whole { free: serving, count })
                .ok_or(Misfit::Whole { wanted: count, free: serving.len() })
        }
        Gpus::Share { count, milli, memory } => {
            let (wanted, free) = (u32::from(count), serving.len());
            match wanted {
                _ if free >= wanted.max(1) => Ok(Fit::Share { gpus: serving, count: wanted }),
                0 | 1 => Err(Misfit::Share { milli, memory }),
                _ => Err(Misfit::Shares { milli, memory, wanted, free }),
            }
        }
        Gpus::Partition(profile) => {
            let places = |position: usize| {
                let gpu = &node.gpus[position];
                let places = catalog.places(gpu.model, profile).iter();
                places
                    .filter(|place| taken(gpu, request, **place).is_some())
                    .map(move |place| Part { gpus: GpuSet::one(position), slices: *place })
            };
            let places: Vec<_> = serving.iter().flat_map(places).collect();
            (!places.is_empty()).then_some(Fit::Partition(places)).ok_or(Misfit::Partition)
        }
    }
}

/// The GPU can be one of those that serve the request.
pub fn serves(catalog: &Catalog, gpu: &Gpu, request: &Request) -> bool {
    if !gpu.is_usable || !request.models.has(gpu.model) {
        return false;
    }
    match request.gpus {
        Gpus::None => false,
        Gpus::Whole(_) | Gpus::Share { .. } => taken(gpu, request, 0).is_some(),
        Gpus::Partition(profile) => {
            let mut places = catalog.places(gpu.model, profile).iter();
            places.any(|place| taken(gpu, request, *place).is_some())
        }
    }
}
