//! What lies outside of the agent and is asked: servers and programs that the configuration names, and files
//! that a device has to fill.

mod http;
mod patience;
mod program;

pub(crate) use http::{GetError, get};
pub(crate) use patience::{Late, Patience};
pub(crate) use program::{ProgramError, run, run_to_end};
