//! NVML's return codes as errors, and why the library itself could not be had.

use std::path::PathBuf;

use nvml_wrapper_sys::bindings as sys;

use crate::Result;

/// A call that NVML did not answer with success.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {}", self.meaning())]
pub struct NvmlError {
    /// The C function.
    pub call: &'static str,
    /// The `nvmlReturn_t` it gave.
    pub code: u32,
}

/// Why NVML could not be loaded and initialised.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// No library, or one that does not load.
    #[error("cannot load {path}")]
    Open {
        /// The path as given.
        path: PathBuf,
        /// The dynamic linker's answer.
        source: libloading::Error,
    },
    /// The library is there; the driver behind it is not, or refuses.
    #[error("cannot initialise {path}")]
    Init {
        /// The path as given.
        path: PathBuf,
        /// NVML's answer.
        source: NvmlError,
    },
}

/// In place of an `nvmlReturn_t`, which are small numbers: the call gave success, and something that cannot be.
const NONSENSE: u32 = u32::MAX;

// === impl NvmlError ===

impl NvmlError {
    /// Turns a return code into a result.
    pub(crate) fn check(call: &'static str, code: sys::nvmlReturn_t) -> Result<()> {
        if code == sys::nvmlReturn_enum_NVML_SUCCESS { Ok(()) } else { Err(Self { call, code }) }
    }

    /// The error of a function that this driver's library does not export.
    pub(crate) fn missing(call: &'static str) -> Self {
        Self { call, code: sys::nvmlReturn_enum_NVML_ERROR_FUNCTION_NOT_FOUND }
    }

    /// The error of a call that succeeded with an answer that cannot be.
    pub fn nonsense(call: &'static str) -> Self {
        Self { call, code: NONSENSE }
    }

    /// The driver says that the GPU is inaccessible: it fell off the bus, or needs a reset first.
    pub fn is_lost(self) -> bool {
        matches!(
            self.code,
            sys::nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST
                | sys::nvmlReturn_enum_NVML_ERROR_RESET_REQUIRED
        )
    }

    /// The library is there, and no kernel module or no device behind it.
    pub fn is_driver_absent(self) -> bool {
        matches!(
            self.code,
            sys::nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED
                | sys::nvmlReturn_enum_NVML_ERROR_GPU_NOT_FOUND
        )
    }

    /// The device or the driver has no such thing, or not in this version.
    pub fn is_unsupported(self) -> bool {
        matches!(
            self.code,
            sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED
                | sys::nvmlReturn_enum_NVML_ERROR_FUNCTION_NOT_FOUND
                | sys::nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH
        )
    }

    /// This process may not know.
    pub fn is_permission(self) -> bool {
        self.code == sys::nvmlReturn_enum_NVML_ERROR_NO_PERMISSION
    }

    /// What is to be made does not fit beside what is there.
    pub fn is_no_room(self) -> bool {
        self.code == sys::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_RESOURCES
    }

    /// Somebody uses what is to be removed, or something is left in it.
    pub fn is_in_use(self) -> bool {
        self.code == sys::nvmlReturn_enum_NVML_ERROR_IN_USE
    }

    /// There is more to tell than there was room for.
    pub fn is_too_small(self) -> bool {
        self.code == sys::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE
    }

    /// A wait ended without an event.
    pub fn is_timeout(self) -> bool {
        self.code == sys::nvmlReturn_enum_NVML_ERROR_TIMEOUT
    }

    /// There is no such part, as with MIG instances that were never made.
    pub fn is_absent(self) -> bool {
        matches!(
            self.code,
            sys::nvmlReturn_enum_NVML_ERROR_NOT_FOUND
                | sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT
        )
    }

    /// The code in words, after `nvmlReturn_t` in `nvml.h`; not asked of the library, since it may
    /// be gone or hanging when the error is printed.
    fn meaning(self) -> String {
        let words = match self.code {
            sys::nvmlReturn_enum_NVML_ERROR_UNINITIALIZED => "NVML is not initialised",
            sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT => "invalid argument",
            sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED => "not supported",
            sys::nvmlReturn_enum_NVML_ERROR_NO_PERMISSION => "no permission",
            sys::nvmlReturn_enum_NVML_ERROR_NOT_FOUND => "not found",
            sys::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE => "buffer too small",
            sys::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_POWER => "external power is not attached",
            sys::nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED => "the driver is not loaded",
            sys::nvmlReturn_enum_NVML_ERROR_TIMEOUT => "timeout",
            sys::nvmlReturn_enum_NVML_ERROR_IRQ_ISSUE => "the kernel sees an interrupt issue",
            sys::nvmlReturn_enum_NVML_ERROR_LIBRARY_NOT_FOUND => "a shared library is missing",
            sys::nvmlReturn_enum_NVML_ERROR_FUNCTION_NOT_FOUND => {
                "this driver has no such function"
            }
            sys::nvmlReturn_enum_NVML_ERROR_CORRUPTED_INFOROM => "the infoROM is corrupted",
            sys::nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST => "the GPU is lost",
            sys::nvmlReturn_enum_NVML_ERROR_RESET_REQUIRED => "the GPU needs a reset",
            sys::nvmlReturn_enum_NVML_ERROR_OPERATING_SYSTEM => "the operating system refused",
            sys::nvmlReturn_enum_NVML_ERROR_LIB_RM_VERSION_MISMATCH => {
                "the library and the kernel module have different versions"
            }
            sys::nvmlReturn_enum_NVML_ERROR_IN_USE => "in use",
            sys::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_RESOURCES => "insufficient resources",
            sys::nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH => {
                "this driver has another version of the structure"
            }
            sys::nvmlReturn_enum_NVML_ERROR_MEMORY => "out of memory",
            sys::nvmlReturn_enum_NVML_ERROR_NOT_READY => "not ready",
            sys::nvmlReturn_enum_NVML_ERROR_GPU_NOT_FOUND => "no GPUs were found",
            NONSENSE => "the answer makes no sense",
            sys::nvmlReturn_enum_NVML_ERROR_UNKNOWN => "an internal driver error",
            other => return format!("NVML error {other}"),
        };
        words.to_owned()
    }
}

/// Makes an absent feature `None`, and keeps every other error.
pub(crate) trait Optional<T> {
    /// `None` where the device or the driver has no such thing.
    fn optional(self) -> Result<Option<T>>;
}

impl<T> Optional<T> for Result<T> {
    fn optional(self) -> Result<Option<T>> {
        match self {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.is_unsupported() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// What a call tells, if it is no more than what there can be.
pub(crate) fn at_most<T: PartialOrd + Copy>(call: &'static str, told: T, most: T) -> Result<T> {
    if told <= most { Ok(told) } else { Err(NvmlError::nonsense(call)) }
}
