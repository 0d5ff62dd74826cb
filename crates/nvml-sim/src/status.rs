//! `nvmlReturn_t`: the status that every NVML function returns.

use std::{
    ffi::{CStr, c_char},
    panic::{AssertUnwindSafe, catch_unwind},
};

use nvml_wrapper_sys::bindings as sys;
use windlass_machine::mig::MigRefusal;

use crate::abi;

/// `nvmlReturn_t` at the ABI.
pub(crate) type Code = sys::nvmlReturn_t;

/// `nvmlReturn_t` other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status(pub(crate) Code);

/// Result of an NVML function.
pub(crate) type NvmlResult<T = ()> = Result<T, Status>;

// === impl Status ===

impl Status {
    pub(crate) const UNINITIALIZED: Self = Self(sys::nvmlReturn_enum_NVML_ERROR_UNINITIALIZED);
    pub(crate) const INVALID_ARGUMENT: Self =
        Self(sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT);
    pub(crate) const NOT_SUPPORTED: Self = Self(sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED);
    pub(crate) const NOT_FOUND: Self = Self(sys::nvmlReturn_enum_NVML_ERROR_NOT_FOUND);
    pub(crate) const INSUFFICIENT_SIZE: Self =
        Self(sys::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE);
    pub(crate) const DRIVER_NOT_LOADED: Self =
        Self(sys::nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED);
    pub(crate) const TIMEOUT: Self = Self(sys::nvmlReturn_enum_NVML_ERROR_TIMEOUT);
    pub(crate) const GPU_IS_LOST: Self = Self(sys::nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST);
    pub(crate) const OPERATING_SYSTEM: Self =
        Self(sys::nvmlReturn_enum_NVML_ERROR_OPERATING_SYSTEM);
    pub(crate) const RESET_REQUIRED: Self = Self(sys::nvmlReturn_enum_NVML_ERROR_RESET_REQUIRED);
    pub(crate) const IN_USE: Self = Self(sys::nvmlReturn_enum_NVML_ERROR_IN_USE);
    pub(crate) const INSUFFICIENT_RESOURCES: Self =
        Self(sys::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_RESOURCES);
    pub(crate) const VERSION_MISMATCH: Self =
        Self(sys::nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    pub(crate) const UNKNOWN: Self = Self(sys::nvmlReturn_enum_NVML_ERROR_UNKNOWN);

    /// Status for the driver's refusal to create or destroy a MIG instance.
    pub(crate) fn from_refusal(refusal: MigRefusal) -> Self {
        match refusal {
            MigRefusal::MigDisabled => Self::NOT_SUPPORTED,
            MigRefusal::InvalidPlacement | MigRefusal::NotFound => Self::INVALID_ARGUMENT,
            MigRefusal::InsufficientResources => Self::INSUFFICIENT_RESOURCES,
            MigRefusal::InUse => Self::IN_USE,
        }
    }
}

/// Runs the body of a function and returns its status code. A panic becomes `UNKNOWN`, because it must not abort the
/// client. It can only poison locks, and all locks guard values that are always valid.
pub(crate) fn run_call(body: impl FnOnce() -> NvmlResult) -> Code {
    abi::begin_call();
    code(catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(Status::UNKNOWN)))
}

fn code(result: NvmlResult) -> Code {
    match result {
        Ok(()) => sys::nvmlReturn_enum_NVML_SUCCESS,
        // An injected error may be any number. Zero would report success although no output is written.
        Err(Status(sys::nvmlReturn_enum_NVML_SUCCESS)) => Status::UNKNOWN.0,
        Err(Status(code)) => code,
    }
}

/// Descriptions from the real library. The index is the code.
const DESCRIPTIONS: &[&CStr] = &[
    c"Success",
    c"Uninitialized",
    c"Invalid Argument",
    c"Not Supported",
    c"Insufficient Permissions",
    c"Already Initialized",
    c"Not Found",
    c"Insufficient Size",
    c"Insufficient External Power",
    c"Driver Not Loaded",
    c"Timeout",
    c"Interrupt Request Issue",
    c"NVML Shared Library Not Found",
    c"Function Not Found",
    c"Corrupted infoROM",
    c"GPU is lost",
    c"GPU requires reset",
    c"The operating system has blocked the request",
    c"RM has detected an NVML/RM version mismatch",
    c"In use by another client",
    c"Insufficient Memory",
    c"No data",
    c"The requested vGPU operation is not available on the target device because ECC is enabled",
    c"Insufficient Resources",
    c"Frequency Not Supported",
    c"Argument version mismatch",
    c"Deprecated",
    c"Not Ready",
    c"GPU Not Found",
    c"Invalid State",
    c"Reset Type Not Supported",
];

/// Description of any code; callable before `nvmlInit`.
// SAFETY: the name is NVML's. A process loads this library in place of NVIDIA's.
#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(code: Code) -> *const c_char {
    DESCRIPTIONS.get(code as usize).unwrap_or(&c"Unknown Error").as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_unknown_error() {
        assert_eq!(run_call(|| panic!("a bug")), Status::UNKNOWN.0);
    }
}
