//! Calls with a time limit: HTTP requests, programs, files that firmware serves.

mod deadline_pool;
mod http;
mod program;
mod scan_pool;

pub use deadline_pool::{DeadlineExceeded, DeadlinePool};
pub use http::{GetError, get};
pub use program::{ProgramError, run, run_to_end};
pub use scan_pool::{MAX_DEADLINE, ScanPool};
