//! What lies outside of the agent and is asked when the configuration says so: servers and programs.

mod http;
mod program;

pub(crate) use http::{GetError, get};
pub(crate) use program::{ProgramError, run};
