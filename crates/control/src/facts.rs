//! Facts of nodes and pods that decide about placement, read from the API server's objects.
//!
//! Objects are converted once, at the edge. Nothing behind this module knows an annotation or a resource name.

mod amounts;
pub mod claim_gpus;
mod gang;
mod gpu_kind;
mod gpu_wish;
mod node;
mod pod;

pub(crate) use self::{
    amounts::{PER_UNIT, of_pod as amount_of_pod},
    gang::{GANG, MAX_WAITING},
};
pub use self::{
    claim_gpus::{DeviceName, SliceGpu},
    gang::{Gang, GangError},
    gpu_wish::{GpuWish, GpuWishError, SharedBy},
    node::{GpuFacts, MAX_GPUS, NodeFacts},
    pod::{PodFacts, Wish},
};

/// The label by which pods of one application are known (Kubernetes' recommended labels).
pub(crate) const PART_OF: &str = "app.kubernetes.io/part-of";
