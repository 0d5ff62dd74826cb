//! Embedded cluster for tests: the part of Kubernetes' control plane that a DRA driver and an extender use.
//!
//! [`api`] is the API server. [`cluster`] adds a scheduler for claims: it creates claims from templates, allocates
//! their devices with `windlass_sched::allocator`, reserves and releases them. [`scheduler`] is a scheduler that calls
//! an extender. [`node`] passes bound pods to an embedded kubelet.

pub mod api;
pub mod cluster;
pub mod node;
pub mod scheduler;

mod names;
