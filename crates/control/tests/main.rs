//! The extender against the embedded API server.

mod binding;
mod claims;
mod model;
mod questions;
mod rig;
mod virtual_gpus;
