//! Device lifecycle: cleanup between tenants, and MPS daemons.

pub mod cleanup;
pub mod mps;
