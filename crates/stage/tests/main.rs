//! Integration tests through the public API.

mod chain;
mod custody;
mod generated;
mod join;
mod pipeline;
mod random;
mod refusals;
mod replicas;
