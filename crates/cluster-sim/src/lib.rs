//! Embedded cluster: the part of Kubernetes' control plane that a DRA driver meets, small enough for a test.
//!
//! [`api`] is the API server. [`allocator`] is the part of the scheduler that chooses devices for claims. [`cluster`]
//! combines both: it makes claims from templates, allocates, reserves and releases them. [`node`] passes bound pods
//! to an embedded kubelet.

pub mod allocator;
pub mod api;
pub mod cluster;
pub mod node;

mod names;
