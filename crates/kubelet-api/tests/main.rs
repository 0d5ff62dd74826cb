//! All integration tests of the crate, as one program that is linked once.

mod generated;
mod given_up;
