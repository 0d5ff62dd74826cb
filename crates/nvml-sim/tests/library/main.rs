//! Tests of the built cdylib: loaded as an NVML client loads it, and called through the public bindings.

#![allow(clippy::wildcard_imports, reason = "NVML's names have a prefix")]

mod basics;
mod cuda;
mod exports;
mod faults;
mod header;
mod links;
mod mig;
mod mig_instances;
mod rig;
