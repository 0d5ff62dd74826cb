//! Annotations by which the agents and the cluster half exchange devices and placements.
//!
//! ```text
//!  agent ──[`NodeDevices`] on its Node──> cluster half ──[`PodPlacement`] on the pod──> agent
//! ```
//!
//! A cluster with Dynamic Resource Allocation needs neither: slices and claims say the same. Both halves read the
//! [`AcceptedGpus`] of a pod's author.

mod accepted_gpus;
mod node_devices;
mod pod_placement;

pub use self::{
    accepted_gpus::AcceptedGpus,
    node_devices::{NodeDevice, NodeDevices, OnlyFor},
    pod_placement::{DecidedDevice, PodPlacement},
};

/// An annotation whose value does not parse.
#[derive(Debug, thiserror::Error)]
#[error("annotation {annotation} is unreadable")]
pub struct UnreadableAnnotation {
    /// Key of the annotation.
    pub annotation: &'static str,
    /// The reason, with the position in the text.
    pub source: serde_json::Error,
}
