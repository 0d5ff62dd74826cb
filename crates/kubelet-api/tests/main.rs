//! One program for all of the crate's integration tests: it is linked once.

mod generated;
mod given_up;
