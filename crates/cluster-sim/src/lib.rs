//! The embedded cluster: as much of Kubernetes' control plane as a DRA driver meets, small enough to
//! live in a test.
//!
//! [`api`] is the API server, [`allocator`] the part of the scheduler that chooses devices for claims,
//! and [`cluster`] has both: it makes claims from templates, allocates and reserves them, and lets them
//! go. [`node`] hands what is bound to an embedded kubelet.

pub mod allocator;
pub mod api;
pub mod cluster;
pub mod node;

mod names;
