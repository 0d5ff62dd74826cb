//! CUDA errors, with the causes of those that the machine is responsible for.

use std::{fmt, path::PathBuf};

use crate::Result;

/// Failed CUDA call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {}", CodeDescription(*.code))]
pub struct CudaError {
    /// The C function.
    pub call: &'static str,
    /// The returned `CUresult`.
    pub code: u32,
}

/// Error of loading and initialising CUDA.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The library is missing, does not load, or is too old.
    #[error("cannot load {0}")]
    Open(PathBuf, #[source] libloading::Error),
    /// `cuInit` failed.
    #[error("cannot initialise {0}")]
    Init(PathBuf, #[source] CudaError),
}

struct CodeDescription(u32);

/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: u32 = 2;

/// Code, name and cause of errors that the machine can cause. Names are those of `CUresult` in `cuda.h`. Causes come
/// from its comments, and from NVIDIA's manuals of fabric manager, MPS and CUDA forward compatibility.
const KNOWN_CODES: [(u32, &str, &str); 15] = [
    (1, "CUDA_ERROR_INVALID_VALUE", ""),
    (
        OUT_OF_MEMORY,
        "CUDA_ERROR_OUT_OF_MEMORY",
        "another program uses the GPU's memory, or the host has no memory left",
    ),
    (3, "CUDA_ERROR_NOT_INITIALIZED", ""),
    (
        34,
        "CUDA_ERROR_STUB_LIBRARY",
        "the library is the toolkit's stub: configure the driver's library",
    ),
    (46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "the compute mode allows no program, or no second one"),
    (
        100,
        "CUDA_ERROR_NO_DEVICE",
        "there is no such device, or this process may not open /dev/nvidia*",
    ),
    (101, "CUDA_ERROR_INVALID_DEVICE", "there is no such device"),
    (214, "CUDA_ERROR_ECC_UNCORRECTABLE", "the memory has an uncorrectable error"),
    (
        304,
        "CUDA_ERROR_OPERATING_SYSTEM",
        "the kernel refused: this process may not open /dev/nvidia*",
    ),
    (719, "CUDA_ERROR_LAUNCH_FAILED", "see the kernel's log for an XID"),
    (802, "CUDA_ERROR_SYSTEM_NOT_READY", "the fabric manager does not run, or has not finished"),
    (803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "library and kernel module have different versions"),
    (
        804,
        "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
        "the library is newer than the kernel module, which this card does not support",
    ),
    (805, "CUDA_ERROR_MPS_CONNECTION_FAILED", "the MPS daemon does not answer"),
    (
        999,
        "CUDA_ERROR_UNKNOWN",
        "often /dev/nvidia-uvm is missing, or this process may not open it",
    ),
];

// === impl CudaError ===

impl CudaError {
    /// Converts a return code.
    pub(crate) fn check(call: &'static str, code: u32) -> Result<()> {
        if code == 0 { Ok(()) } else { Err(Self { call, code }) }
    }

    /// True if no free memory range is large enough.
    pub(crate) fn is_out_of_memory(self) -> bool {
        self.code == OUT_OF_MEMORY
    }
}

impl fmt::Display for CodeDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match KNOWN_CODES.iter().find(|(code, ..)| *code == self.0) {
            Some((code, name, "")) => write!(f, "{name} ({code})"),
            Some((code, name, cause)) => write!(f, "{name} ({code}): {cause}"),
            None => write!(f, "CUresult {}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_its_name_and_its_cause() {
        let text = |code| CudaError { call: "cuInit", code }.to_string();
        assert_eq!(
            text(802),
            "cuInit: CUDA_ERROR_SYSTEM_NOT_READY (802): the fabric manager does not run, or has not \
             finished"
        );
        assert_eq!(text(3), "cuInit: CUDA_ERROR_NOT_INITIALIZED (3)");
        assert_eq!(text(4711), "cuInit: CUresult 4711");
    }
}
