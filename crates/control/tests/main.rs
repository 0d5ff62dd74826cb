//! The extender against the embedded API server.

mod binding;
mod claim_ranks;
mod claims;
mod competing_gangs;
mod gangs;
mod model;
mod page;
mod questions;
mod rig;
mod virtual_gpus;
