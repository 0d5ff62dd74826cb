//! One program for all of the crate's integration tests: it is linked once.

mod agent;
mod claims;
mod cluster_api;
mod decisions;
mod devices;
mod dra;
mod kernel;
mod memory_limits;
mod mps;
mod nv_fractions;
mod shares;
mod steps;
mod virtual_gpus;
mod watchdog;
