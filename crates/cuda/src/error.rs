//! CUDA errors, with remedies for those caused by the machine.

use std::{fmt, path::PathBuf};

use crate::Result;

/// Failed CUDA call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {}", Meaning(*.code))]
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
    /// The library has no working driver.
    #[error("cannot initialise {0}")]
    Init(PathBuf, #[source] CudaError),
}

struct Meaning(u32);

/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: u32 = 2;

/// Codes that the machine causes: names after `CUresult` in `cuda.h`, causes after its comments and NVIDIA's
/// manuals of fabric manager, MPS and CUDA forward compatibility.
const KNOWN: [(u32, &str, &str); 15] = [
    (1, "CUDA_ERROR_INVALID_VALUE", ""),
    (
        OUT_OF_MEMORY,
        "CUDA_ERROR_OUT_OF_MEMORY",
        "something else has the GPU's memory, or this process none of the host's",
    ),
    (3, "CUDA_ERROR_NOT_INITIALIZED", ""),
    (34, "CUDA_ERROR_STUB_LIBRARY", "this library is the toolkit's stub: name the driver's own"),
    (
        46,
        "CUDA_ERROR_DEVICE_UNAVAILABLE",
        "its compute mode lets no program in, or no other beside one that has it",
    ),
    (
        100,
        "CUDA_ERROR_NO_DEVICE",
        "there is no such device, or /dev/nvidia* may not be opened here",
    ),
    (101, "CUDA_ERROR_INVALID_DEVICE", "there is no such device"),
    (214, "CUDA_ERROR_ECC_UNCORRECTABLE", "its memory is broken"),
    (304, "CUDA_ERROR_OPERATING_SYSTEM", "the kernel refused: /dev/nvidia* may not be opened here"),
    (719, "CUDA_ERROR_LAUNCH_FAILED", "see the kernel's log for an XID"),
    (802, "CUDA_ERROR_SYSTEM_NOT_READY", "the fabric manager does not run, or has not finished"),
    (803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "library and kernel module are of two versions"),
    (
        804,
        "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
        "the library is newer than the kernel module, on a card that cannot have that",
    ),
    (805, "CUDA_ERROR_MPS_CONNECTION_FAILED", "the MPS daemon does not answer"),
    (999, "CUDA_ERROR_UNKNOWN", "often that /dev/nvidia-uvm is missing or may not be opened here"),
];

// === impl CudaError ===

impl CudaError {
    /// Converts a return code.
    pub(crate) fn check(call: &'static str, code: u32) -> Result<()> {
        if code == 0 { Ok(()) } else { Err(Self { call, code }) }
    }

    /// No piece of memory is large enough.
    pub(crate) fn is_out_of_memory(self) -> bool {
        self.code == OUT_OF_MEMORY
    }
}

impl fmt::Display for Meaning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match KNOWN.iter().find(|(code, ..)| *code == self.0) {
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
    fn an_error_says_its_name_and_where_it_comes_from() {
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
