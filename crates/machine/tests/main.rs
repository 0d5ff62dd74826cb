//! Single test program for all integration tests of the crate, linked once.

mod kinds;
mod machines;
mod profiles;
