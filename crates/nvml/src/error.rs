//! NVML errors, and errors of loading the library.

use std::path::PathBuf;

use nvml_wrapper_sys::bindings as sys;

use crate::Result;

/// Failed NVML call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {}", self.meaning())]
pub struct NvmlError {
    /// The C function.
    pub call: &'static str,
    /// The returned `nvmlReturn_t`.
    pub code: u32,
}

/// Error of loading and initialising NVML.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The library is missing or does not load.
    #[error("cannot load {0}")]
    Open(PathBuf, #[source] libloading::Error),
    /// The library's file ends before the segments that the linker maps: its installation is incomplete.
    #[error(
        "cannot load {path}: it is cut off, with {length} of {expected} bytes; install the driver again"
    )]
    Truncated {
        /// Path as given.
        path: PathBuf,
        /// Length of the file in bytes.
        length: u64,
        /// Length in bytes that the header requires.
        expected: u64,
    },
    /// `nvmlInit_v2` failed.
    #[error("cannot initialise {0}")]
    Init(PathBuf, #[source] NvmlError),
}

/// Code of this crate for a successful call with an impossible answer. It differs from all codes of `nvmlReturn_t`,
/// which are small.
const INVALID_ANSWER: u32 = u32::MAX;

// === impl NvmlError ===

impl NvmlError {
    pub(crate) fn check(call: &'static str, code: sys::nvmlReturn_t) -> Result<()> {
        if code == sys::nvmlReturn_enum_NVML_SUCCESS { Ok(()) } else { Err(Self { call, code }) }
    }

    /// Error of a function that the library does not export.
    pub(crate) fn function_not_found(call: &'static str) -> Self {
        Self { call, code: sys::nvmlReturn_enum_NVML_ERROR_FUNCTION_NOT_FOUND }
    }

    /// Error of a successful call with an impossible answer.
    pub fn invalid_answer(call: &'static str) -> Self {
        Self { call, code: INVALID_ANSWER }
    }

    /// True if the GPU is inaccessible: off the bus, or in need of a reset.
    pub fn is_lost(self) -> bool {
        matches!(
            self.code,
            sys::nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST
                | sys::nvmlReturn_enum_NVML_ERROR_RESET_REQUIRED
        )
    }

    /// True if the library finds no kernel module or no device.
    pub fn is_driver_absent(self) -> bool {
        matches!(
            self.code,
            sys::nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED
                | sys::nvmlReturn_enum_NVML_ERROR_GPU_NOT_FOUND
        )
    }

    /// True if the device or driver lacks the feature, or the version of a structure.
    pub fn is_unsupported(self) -> bool {
        matches!(
            self.code,
            sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED
                | sys::nvmlReturn_enum_NVML_ERROR_FUNCTION_NOT_FOUND
                | sys::nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH
        )
    }

    /// True if the process lacks a permission.
    pub fn is_no_permission(self) -> bool {
        self.code == sys::nvmlReturn_enum_NVML_ERROR_NO_PERMISSION
    }

    /// True if the GPU has no room for a new instance.
    pub fn is_insufficient_resources(self) -> bool {
        self.code == sys::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_RESOURCES
    }

    /// True if the object is in use, or not empty.
    pub fn is_in_use(self) -> bool {
        self.code == sys::nvmlReturn_enum_NVML_ERROR_IN_USE
    }

    /// True if the buffer was too small.
    pub fn is_insufficient_size(self) -> bool {
        self.code == sys::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE
    }

    /// True if a wait ended without an event.
    pub fn is_timeout(self) -> bool {
        self.code == sys::nvmlReturn_enum_NVML_ERROR_TIMEOUT
    }

    /// True if there is no data, such as no samples of an idle GPU.
    pub fn is_not_found(self) -> bool {
        self.code == sys::nvmlReturn_enum_NVML_ERROR_NOT_FOUND
    }

    /// True if there is no such object, such as a MIG instance at an index without one.
    pub fn is_absent(self) -> bool {
        matches!(
            self.code,
            sys::nvmlReturn_enum_NVML_ERROR_NOT_FOUND
                | sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT
        )
    }

    /// Meaning of the code (`nvmlReturn_t` in `nvml.h`). NVML's own function is not used, because the library may have
    /// been unloaded or may hang.
    fn meaning(self) -> String {
        let meaning = match self.code {
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
            INVALID_ANSWER => "the answer makes no sense",
            sys::nvmlReturn_enum_NVML_ERROR_UNKNOWN => "an internal driver error",
            other => return format!("NVML error {other}"),
        };
        meaning.to_owned()
    }
}

/// Conversion of an "unsupported" error into `None`.
pub(crate) trait UnsupportedAsNone<T> {
    /// `None` if the device or driver lacks the feature.
    fn unsupported_as_none(self) -> Result<Option<T>>;
}

impl<T> UnsupportedAsNone<T> for Result<T> {
    fn unsupported_as_none(self) -> Result<Option<T>> {
        match self {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.is_unsupported() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Returns a value up to its bound. A larger value is an impossible answer.
pub(crate) fn at_most<T: PartialOrd + Copy>(call: &'static str, value: T, max: T) -> Result<T> {
    if value <= max { Ok(value) } else { Err(NvmlError::invalid_answer(call)) }
}
