//! Single binary for all integration tests of the crate: it is linked once.

mod defects;
mod go_driver;
