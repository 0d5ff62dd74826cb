//! What lies outside of the agent and is asked: servers and programs that the configuration names, and files
//! that a device has to fill.

mod http;
mod patience;
mod program;

pub use http::{GetError, get};
pub use patience::{Late, Patience};
pub use program::{ProgramError, run, run_to_end};
