//! The kit as its users see it.

mod chain;
mod custody;
mod generated;
mod join;
mod pipeline;
mod random;
mod refusals;
mod replicas;
