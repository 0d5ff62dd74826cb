//! The extender against the embedded API server.

mod binding;
mod claim_ranks;
mod claims;
mod model;
mod page;
mod questions;
mod rig;
mod several_vendors;
mod virtual_gpus;
