//! What is done to devices for their tenants: cleanup between two of them, and the daemons of MPS.

pub mod cleanup;
pub mod mps;
