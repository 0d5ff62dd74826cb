//! One program for all of the crate's integration tests: it is linked once.

mod defects;
mod go_driver;
