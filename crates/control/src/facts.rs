//! Facts of nodes and pods that decide about placement, read from the API server's objects.
//!
//! Objects are converted once, at the edge. Nothing behind this module knows an annotation or a resource name.

mod amounts;
pub mod claim_gpus;
mod gpu_kind;
mod gpu_wish;
mod node;
mod pod;

pub use self::{
    claim_gpus::{DeviceName, SliceGpu},
    gpu_wish::{GpuWish, GpuWishError, SharedBy},
    node::{GpuFacts, MAX_GPUS, NodeFacts},
    pod::{PodFacts, Wish},
};
