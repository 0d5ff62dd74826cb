//! Device lifecycle: cleanup between tenants, MPS daemons, and the measured use of a GPU by containers.

pub mod cleanup;
pub mod gpu_use;
pub mod mps;
