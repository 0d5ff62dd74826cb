//! The extender against the embedded API server.

mod agents;
mod binding;
mod claim_ranks;
mod claims;
mod competing_gangs;
mod gangs;
mod model;
mod page;
mod page_beside;
mod questions;
mod rig;
mod several_vendors;
mod virtual_gpus;
