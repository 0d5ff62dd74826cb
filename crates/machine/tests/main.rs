//! One program for all of the crate's integration tests: it is linked once.

mod kinds;
mod machines;
mod profiles;
