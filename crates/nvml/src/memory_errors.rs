//! Memory errors of a GPU: counters, row remapping and page retirement.

use nvml_wrapper_sys::bindings as sys;

use crate::{
    Result,
    error::UnsupportedAsNone as _,
    gpu::Gpu,
    library::{call, get},
};

/// Row remapping: replacement of bad memory rows by spare rows, since Ampere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowRemapping {
    /// Rows remapped after corrected errors, over the GPU's life.
    pub corrected: u32,
    /// Rows remapped after uncorrected errors, over the GPU's life.
    pub uncorrected: u32,
    /// True if a remapping is pending until the next reset.
    pub pending: bool,
    /// True if a remapping failed, so that the bad row stays in use.
    pub failed: bool,
}

impl Gpu {
    /// Row remapping; `None` if unsupported.
    pub fn row_remapping(&self) -> Result<Option<RowRemapping>> {
        let (mut corrected, mut uncorrected, mut pending, mut failed) = (0, 0, 0, 0);
        let result = call!(
            self.table,
            nvmlDeviceGetRemappedRows,
            self.handle.0,
            &raw mut corrected,
            &raw mut uncorrected,
            &raw mut pending,
            &raw mut failed
        );
        let (pending, failed) = (pending != 0, failed != 0);
        let remapping = RowRemapping { corrected, uncorrected, pending, failed };
        Ok(result.unsupported_as_none()?.map(|()| remapping))
    }

    /// True if a page retirement is pending until the next reset; `None` on GPUs without it, such as those
    /// with row remapping.
    pub fn page_retirement_pending(&self) -> Result<Option<bool>> {
        let result: Result<u32> =
            get!(self.table, nvmlDeviceGetRetiredPagesPendingStatus, self.handle.0);
        Ok(result
            .unsupported_as_none()?
            .map(|pending| pending == sys::nvmlEnableState_enum_NVML_FEATURE_ENABLED))
    }

    /// Uncorrected ECC errors since the driver was loaded; `None` without ECC.
    pub fn uncorrected_errors(&self) -> Result<Option<u64>> {
        let error_type = sys::nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_UNCORRECTED;
        let counter_type = sys::nvmlEccCounterType_enum_NVML_VOLATILE_ECC;
        get!(self.table, nvmlDeviceGetTotalEccErrors, self.handle.0, error_type, counter_type)
            .unsupported_as_none()
    }
}
