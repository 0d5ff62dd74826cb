//! The driver for Dynamic Resource Allocation: the same devices, named and described so that the scheduler
//! can choose among them, and handed out claim by claim.
//!
//! ```text
//!   NodeState ──> catalog ──> slices ──> publish ──> API server ──> scheduler
//!      (pure)       (pure)                                             │ allocation
//!                      ^                                               v
//!                      └── prepare <── service <── kubelet <──────── claim
//! ```

pub(crate) mod publish;

mod catalog;
mod slices;
