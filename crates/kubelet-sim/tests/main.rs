//! All integration tests of the crate in one program, linked once.

mod conformance;
mod fidelity;
