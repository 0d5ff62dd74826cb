//! The extender against the embedded API server.

mod binding;
mod questions;
mod rig;
