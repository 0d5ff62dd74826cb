//! The driver for Dynamic Resource Allocation: the same devices, named and described so that the scheduler
//! can choose among them, and handed out claim by claim.
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

mod claim;
mod desk;
mod document;
mod doubt;
mod driver;
mod health;
mod kubelet_record;
mod left;
mod leftovers;
mod limits;
mod opaque;
mod plan;
mod portions;
mod prepare;
mod record;
mod registrar;
mod serve;
mod service;
mod slices;
mod status;
mod terms;
mod time_slice;

pub use driver::{Driver, Surroundings, restore};
pub use left::Left;
pub use opaque::{understood as parameters_understood, understood_claim};
pub use record::{ClaimFile, FORMAT as CLAIMS, Held, Records, Stage};
pub(crate) use registrar::Standing;
