//! Compute mode of a GPU: how many processes may have a CUDA context on it.

use std::ffi::CString;

use nvml_wrapper_sys::bindings as sys;

use crate::{
    Nvml, Result,
    gpu::Gpu,
    library::{call, get},
};

/// Compute mode of a GPU (`nvmlComputeMode_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComputeMode {
    /// Any number of processes.
    Default,
    /// No process.
    Prohibited,
    /// One process; with MPS, its server.
    ExclusiveProcess,
    /// An unknown mode.
    Other(u32),
}

impl Nvml {
    /// The GPU or MIG instance with this UUID. The call does not depend on other devices, which may have failed.
    pub fn gpu_with_uuid(&self, uuid: &str) -> Result<Gpu> {
        // UUIDs contain no NUL.
        let uuid: Vec<u8> = uuid.bytes().take_while(|&byte| byte != 0).collect();
        let uuid = CString::new(uuid).expect("the bytes end before the first NUL");
        let handle = get!(self.table, nvmlDeviceGetHandleByUUID, uuid.as_ptr())?;
        Ok(Gpu::new(self.table.clone(), handle))
    }
}

impl Gpu {
    /// Current compute mode.
    pub fn compute_mode(&self) -> Result<ComputeMode> {
        get!(self.table, nvmlDeviceGetComputeMode, self.handle.0).map(ComputeMode::from_code)
    }

    /// Sets the compute mode until the driver is reloaded. Needs root. Running processes continue.
    pub fn set_compute_mode(&self, mode: ComputeMode) -> Result<()> {
        call!(self.table, nvmlDeviceSetComputeMode, self.handle.0, mode.code())
    }
}

// === impl ComputeMode ===

impl ComputeMode {
    fn from_code(code: sys::nvmlComputeMode_t) -> Self {
        match code {
            sys::nvmlComputeMode_enum_NVML_COMPUTEMODE_DEFAULT => Self::Default,
            sys::nvmlComputeMode_enum_NVML_COMPUTEMODE_PROHIBITED => Self::Prohibited,
            sys::nvmlComputeMode_enum_NVML_COMPUTEMODE_EXCLUSIVE_PROCESS => Self::ExclusiveProcess,
            other => Self::Other(other),
        }
    }

    fn code(self) -> sys::nvmlComputeMode_t {
        match self {
            Self::Default => sys::nvmlComputeMode_enum_NVML_COMPUTEMODE_DEFAULT,
            Self::Prohibited => sys::nvmlComputeMode_enum_NVML_COMPUTEMODE_PROHIBITED,
            Self::ExclusiveProcess => sys::nvmlComputeMode_enum_NVML_COMPUTEMODE_EXCLUSIVE_PROCESS,
            Self::Other(code) => code,
        }
    }
}
