//! The API server, for the few things that need one: labels, events, leases, claims, ResourceSlices, and a
//! label of the own Node.
//!
//! The agent serves its kubelet without it. Nothing connects before a part has something to say or
//! to ask; each part then has a connection of its own, and lets go of it at the first failure, so that
//! new credentials are read. Every failure is a state: it is said once, and tried again with back-off.

pub mod events;
pub mod labels;
pub mod leases;
pub mod node_label;
pub mod slices;

mod attempts;
mod claim_status;
mod claims;
mod client;
mod error;

pub use claim_status::{ClaimStatuses, StatusOutcome};
pub use claims::Claims;
pub use client::{Client, InvalidNodeName, Limits};
pub use error::ClusterError;

/// Who writes, as the API server remembers it.
const MANAGER: &str = "windlass";
