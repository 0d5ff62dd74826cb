//! Safe bindings to NVML, NVIDIA's management library.
//!
//! The library is opened at run time from the caller's path, so one binary serves nodes with and without a
//! driver. A missing function of an older driver is an error value. All calls block, and a call into a
//! failing driver may hang: callers use threads that they can abandon.
//!
//! NVML is thread-safe ("The NVML library is thread-safe", NVML reference, section 1), so all types are
//! `Send` and `Sync`.

mod compute_mode;
mod driver;
mod elf;
mod error;
mod event;
mod fabric;
mod fields;
mod gpu;
mod gpu_instance;
mod library;
mod memory_errors;
mod memory_limits;
mod mig;
mod nvlink;
mod pcie;
mod processes;
mod profiles;
mod recovery;
mod slowdown;
mod telemetry;

pub use compute_mode::ComputeMode;
pub use driver::{CudaVersion, Nvml};
pub use error::{LoadError, NvmlError};
pub use event::{Event, EventKind, EventSet};
pub use fabric::{Fabric, FabricHealth, FabricState};
pub use fields::{FieldValues, NvLinkCounters};
pub use gpu::{Brand, Gpu, Memory};
pub use gpu_instance::{ComputeInstance, GpuInstance, GpuInstanceInfo};
pub use memory_errors::RowRemapping;
pub use memory_limits::{MemoryLimits, ReportedMemoryLimits};
pub use mig::{MigCapacities, MigInstance, MigMode};
pub use nvlink::Remote;
pub use pcie::PcieLink;
pub use processes::{GpuProcess, ProcessUtilization};
pub use profiles::{MigPlacement, MigProfile};
pub use recovery::RecoveryAction;
pub use slowdown::{Slowdown, SlowdownCause};
pub use telemetry::Utilization;

/// Result of an NVML call.
pub type Result<T, E = NvmlError> = std::result::Result<T, E>;
