//! How many programs may use a GPU at once: any number, one, or none.

use std::ffi::CString;

use nvml_wrapper_sys::bindings as sys;

use crate::{
    Nvml, Result,
    gpu::Gpu,
    library::{call, get},
};

/// How many programs may use a GPU at once, after `nvmlComputeMode_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComputeMode {
    /// Any number.
    Default,
    /// None.
    Prohibited,
    /// One, which with MPS is the server of all others.
    ExclusiveProcess,
    /// A mode that these words do not have.
    Other(u32),
}

impl Nvml {
    /// The GPU or MIG instance with that UUID; other devices are not touched, so one that fails does
    /// no harm.
    pub fn gpu_with_uuid(&self, uuid: &str) -> Result<Gpu> {
        // No UUID has a NUL: up to it the text is what it was.
        let uuid: Vec<u8> = uuid.bytes().take_while(|&byte| byte != 0).collect();
        let uuid = CString::new(uuid).expect("cut at the first NUL");
        let mut handle = std::ptr::null_mut();
        call!(self.table, nvmlDeviceGetHandleByUUID, uuid.as_ptr(), &raw mut handle)?;
        Ok(Gpu::new(self.table.clone(), handle))
    }
}

impl Gpu {
    /// How many programs may use the GPU at once.
    pub fn compute_mode(&self) -> Result<ComputeMode> {
        get!(self.table, nvmlDeviceGetComputeMode, self.handle.0).map(ComputeMode::of)
    }

    /// Changes how many programs may use the GPU at once, until the driver is loaded anew. Needs
    /// root. Programs that use it already go on.
    pub fn set_compute_mode(&self, mode: ComputeMode) -> Result<()> {
        call!(self.table, nvmlDeviceSetComputeMode, self.handle.0, mode.code())
    }
}

// === impl ComputeMode ===

impl ComputeMode {
    fn of(code: sys::nvmlComputeMode_t) -> Self {
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
