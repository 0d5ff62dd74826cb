//! Tests of the real cdylib, loaded like any NVML client does and called through the public bindings.

#![allow(clippy::wildcard_imports, reason = "C's names carry their namespace")]

mod basics;
mod cuda;
mod cut;
mod exports;
mod faults;
mod header;
mod links;
mod mig;
mod rig;
