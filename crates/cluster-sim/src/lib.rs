//! The embedded cluster: as much of Kubernetes' control plane as a DRA driver meets, small enough to
//! live in a test.
//!
//! [`api`] is the API server.

pub mod api;
