//! The memory of a GPU, overwritten through CUDA's driver.
//!
//! `libcuda.so.1` is opened at run time from a path that the caller gives. It is the driver's own library, not
//! the toolkit's: wherever programs can compute, it is there.
//!
//! # Assumptions
//!
//! The process exists for this alone. A CUDA context holds some hundred MiB of the GPU until the process ends,
//! a call into a sick driver may never return, and which device is opened is said by `CUDA_VISIBLE_DEVICES` in the
//! environment that the process was started with ([`VISIBLE_DEVICES`]): without it the driver opens all, and it
//! shows no more than one MIG device of them.

mod context;
mod device;
mod error;
mod overwrite;
mod table;

pub use device::{Device, DeviceUuid};
pub use error::{CudaError, LoadError};
pub use overwrite::{OverwriteError, Overwritten, overwrite};
pub use table::Cuda;

/// Names the devices that the driver shows to a process, by UUID.
pub const VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";

/// The answer of one CUDA call.
pub type Result<T, E = CudaError> = std::result::Result<T, E>;
