//! Client of the API server: labels and devices of the Node, events, leases, claims,
//! ResourceSlices, and pods of the node.
//!
//! The agent serves its kubelet without an API server. Each part of this crate opens its own connection at its first
//! request. A failure closes the connection: the next connection reads the credentials again. Each failure is logged
//! once and retried with back-off.

pub mod events;
pub mod labels;
pub mod leases;
pub mod node_condition;
pub mod node_label;
pub mod placed_pods;
pub mod slices;
pub mod terminating_pods;

mod bound_pod;
mod claim_status;
mod claims;
mod client;
mod error;
mod metadata_watch;
mod pod_fields;
mod pod_warning;
mod pods;
mod request_backoff;
mod shared_connection;

pub use bound_pod::BoundPod;
pub use claim_status::{ClaimStatuses, StatusOutcome};
pub use claims::Claims;
pub use client::{Client, ClientTimeouts, InvalidNodeName, node_name};
pub use error::ClusterError;
pub use pod_warning::PodWarning;
pub use pods::{PodDetails, Pods};

/// Field manager of all writes.
const FIELD_MANAGER: &str = "windlass";

/// Parameters for creating an object, with this agent's field manager.
fn create_params() -> kube::api::PostParams {
    kube::api::PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..Default::default() }
}
