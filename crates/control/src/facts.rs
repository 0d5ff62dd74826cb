//! Facts of nodes and pods that placement depends on, converted from the API server's objects.
//!
//! Objects are converted once, at the edge. Modules that use facts know neither annotations nor resource names.

mod amounts;
pub mod claim_gpus;
mod gang;
mod gpu_kind;
mod gpu_request;
mod node;
mod pod;

pub(crate) use self::{
    amounts::{NANOS_PER_UNIT, of_pod as amount_of_pod},
    gang::{GANG, MAX_WAITING},
};
pub use self::{
    claim_gpus::{DeviceName, SliceGpu},
    gang::{Gang, GangError},
    gpu_request::{GpuRequest, GpuRequestError, ShareScheme},
    node::{GpuFacts, MAX_GPUS, NodeFacts},
    pod::{PodFacts, ResourceRequest},
};

/// Label with the name of a pod's application (one of Kubernetes' recommended labels).
pub(crate) const PART_OF: &str = "app.kubernetes.io/part-of";
