//! Annotations by which the agents and the cluster half exchange devices and placements.
//!
//! ```text
//!  agent ──[`NodeDevices`] on its Node──> cluster half ──[`PodPlacement`] on the pod──> agent
//! ```
//!
//! A cluster with Dynamic Resource Allocation needs neither annotation: ResourceSlices and claims have the same data.
//! Agents and cluster half also read the annotations of a pod's author, [`AcceptedGpus`].

mod accepted_gpus;
mod node_devices;
mod pod_placement;

pub use self::{
    accepted_gpus::AcceptedGpus,
    node_devices::{NodeDevice, NodeDevices, PodKind},
    pod_placement::{PlacedGpu, PodPlacement},
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
