//! All integration tests of the crate, as one program that is linked once.

mod dmem;
mod install;
mod limits;
mod node;
