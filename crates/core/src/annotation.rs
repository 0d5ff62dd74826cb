//! Annotations through which the agents and the cluster half tell each other of devices and placements.
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

/// An annotation that is no document of its kind.
#[derive(Debug, thiserror::Error)]
#[error("annotation {annotation} is unreadable")]
pub struct UnreadableAnnotation {
    /// Its key.
    pub annotation: &'static str,
    /// The reason, with the position in the text.
    pub source: serde_json::Error,
}
