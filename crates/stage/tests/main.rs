//! The kit as its users see it.

mod chain;
mod custody;
mod generated;
mod pipeline;
