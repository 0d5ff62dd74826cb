//! Device lifecycle: cleanup between tenants, MPS daemons, and the use of a GPU meanwhile.

pub mod cleanup;
pub mod gpu_use;
pub mod mps;
