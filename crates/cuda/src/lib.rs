//! GPU memory scrubbing through CUDA's driver library.
//!
//! `libcuda.so.1` is opened at run time from the caller's path. It belongs to the driver, not to the CUDA toolkit, so
//! every node that can run CUDA programs has it.
//!
//! # Assumptions
//!
//! The process does nothing else. A CUDA context occupies some hundred MiB of the GPU until the process exits, and a
//! call into a failing driver may hang. `CUDA_VISIBLE_DEVICES` ([`VISIBLE_DEVICES`]) selects the device, in the
//! environment at the start of the process. Without the variable the driver opens all devices and shows at most one MIG
//! device.

mod context;
mod device;
mod driver;
mod error;
mod overwrite;
mod table;

pub use device::{Device, DeviceUuid};
pub use driver::Cuda;
pub use error::{CudaError, LoadError};
pub use overwrite::{OverwriteError, OverwriteReport, overwrite};

/// Environment variable that limits CUDA to devices by UUID.
pub const VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";

/// Result of a CUDA call.
pub type Result<T, E = CudaError> = std::result::Result<T, E>;
