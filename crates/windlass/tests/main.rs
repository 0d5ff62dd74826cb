//! One test binary for all integration tests of the crate, which is linked once.

mod cdi;
mod chart;
mod cli;
mod cluster;
mod docs;
mod explain;
mod host;
mod image;
mod layers;
mod look;
mod monitoring;
mod pipeline;
mod placement;
mod policy;
mod program;
mod tidy;
mod topology;
