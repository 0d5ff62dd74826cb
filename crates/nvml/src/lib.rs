//! NVML, NVIDIA's management library, as safe Rust.
//!
//! The library is opened at run time from a path that the caller gives, so one binary serves nodes
//! with and without a driver. A function that an older driver lacks is an error value, like any
//! other answer. All calls block, and a call into a sick driver may never return: the caller runs
//! them on threads that it can afford to lose.
//!
//! NVML is thread-safe ("The NVML library is thread-safe", NVML reference, section 1), so all types
//! here are `Send` and `Sync`.

mod compute_mode;
mod cut;
mod error;
mod event;
mod fabric;
mod gpu;
mod library;
mod memory_errors;
mod mig;
mod nvlink;
mod processes;
mod profiles;
mod slowdown;
mod telemetry;
mod trouble;

pub use compute_mode::ComputeMode;
pub use cut::{ComputeInstance, GpuInstance, GpuInstanceInfo};
pub use error::{LoadError, NvmlError};
pub use event::{Event, EventKind, EventSet};
pub use fabric::{Fabric, FabricHealth, FabricState};
pub use gpu::{Brand, Gpu, Memory};
pub use library::{CudaVersion, Nvml};
pub use memory_errors::RowRemapping;
pub use mig::{MigInstance, MigMode, MigShare};
pub use nvlink::Remote;
pub use profiles::{MigPlacement, MigProfile};
pub use slowdown::Slowdown;
pub use telemetry::Utilization;
pub use trouble::RecoveryAction;

/// The answer of one NVML call.
pub type Result<T, E = NvmlError> = std::result::Result<T, E>;
