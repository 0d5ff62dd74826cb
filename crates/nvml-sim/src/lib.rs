//! `libnvidia-ml.so.1` of a simulated machine: NVML's C ABI over [`windlass_machine`].
//!
//! The library finds its machine by its own path: `state.json` is in the same folder. Each call answers from the
//! current state, so injected faults act on a running client at once. Struct layouts match `nvml.h`, by the bindings
//! of `nvml-wrapper-sys`. Under the name `libcuda.so.1`, the library provides the CUDA functions that overwrite memory.
//!
//! The library differs from the real one on purpose: an added or removed GPU is visible at once, without a new
//! `nvmlInit`, and the few calls that the real library answers before `nvmlInit` fail.

#![allow(non_snake_case, reason = "the names are NVIDIA's")]

#[macro_use]
mod export;

mod abi;
mod clocks;
mod cuda;
mod cuda_memory;
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
mod mig_instances;
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
