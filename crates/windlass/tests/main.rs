//! One program for all of the crate's integration tests: it is linked once.

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
