//! DRA driver: publishes the node's devices for the scheduler, and prepares the claims that are allocated to them.
//!
//! ```text
//!   NodeState ──> catalog ──> slices ──> publish ──> API server ──> scheduler
//!      (pure)       (pure)                                             │ allocation
//!                      ^                                               v
//!                      └── prepare <── service <── kubelet <──────── claim
//! ```

pub mod catalog;
pub mod metrics;
pub mod publish;
mod published;

mod claim;
mod constraints;
mod consumable_capacity;
mod document;
mod driver;
mod excess;
mod health;
mod kubelet_checkpoint;
mod limits;
mod opaque;
mod orphans;
mod plan;
mod prepare;
mod queue;
mod record;
mod recovered;
mod registrar;
mod serve;
mod service;
mod slices;
mod status;
mod time_slice;
mod unrecorded_claims;

pub use driver::{Deps, Driver, restore_claims};
pub use excess::{MemoryExcess, MemoryExcesses};
pub use kubelet_checkpoint::pods_by_claim;
pub use opaque::{check_claim_parameters, check_parameters};
pub use record::{ClaimFile, FORMAT as CLAIMS, PreparedClaim, PreparedDevice, Records, Stage};
pub use recovered::RecoveredClaims;
pub(crate) use registrar::RegistrationState;
