//! Embedded cluster: the part of Kubernetes' control plane that a DRA driver meets, small enough for a test.
//!
//! [`api`] is the API server. [`cluster`] adds a scheduler: it makes claims from templates, allocates their devices
//! with `windlass_sched::allocator`, reserves and releases them. [`scheduler`] asks an extender. [`node`] passes bound
//! pods to an embedded kubelet.

pub mod api;
pub mod cluster;
pub mod node;
pub mod scheduler;

mod names;
