//! `libnvidia-ml.so.1` of a simulated machine: NVML's C ABI over [`windlass_machine`].
//!
//! The library finds its machine by its own path: `state.json` lies beside it. Each call answers from the
//! current state, so faults injected under a running client act at once. Struct layouts are those of
//! `nvml.h`, taken from the bindings in `nvml-wrapper-sys`. Under the name `libcuda.so.1`, the library is
//! the part of CUDA's driver that fills memory.
//!
//! Intended differences from the real library: an added or removed GPU is visible at once, without a new
//! `nvmlInit`. All calls need `nvmlInit`, including the few that the real library answers without.

#![allow(non_snake_case, reason = "the names are NVIDIA's")]

#[macro_use]
mod export;

mod abi;
mod clocks;
mod cuda;
mod cuda_memory;
mod cut;
mod ecc;
mod events;
mod fabric;
mod faults;
mod fields;
mod handle;
mod identity;
mod instance;
#[cfg(target_pointer_width = "64")]
mod layout;
mod library;
mod lookup;
mod memory;
mod memory_limits;
mod mig;
mod mode;
mod nvlink;
mod origin;
mod pci;
mod power;
mod process;
mod status;
mod system;
mod topology;
mod unsupported;
mod watch;
