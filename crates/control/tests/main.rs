//! The extender against the embedded API server.

mod binding;
mod claims;
mod questions;
mod rig;
