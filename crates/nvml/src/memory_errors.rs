//! Errors of a GPU's memory: how many could not be corrected, and what became of the bad parts.

use nvml_wrapper_sys::bindings as sys;

use crate::{
    Result,
    error::Optional as _,
    gpu::Gpu,
    library::{call, get},
};

/// Rows of memory that are replaced by spare ones, on GPUs since Ampere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowRemapping {
    /// A row waits to be replaced at the next reset.
    pub pending: bool,
    /// A row could not be replaced, and stays in use.
    pub failed: bool,
}

impl Gpu {
    /// What became of bad rows; `None` for a GPU that replaces none.
    pub fn row_remapping(&self) -> Result<Option<RowRemapping>> {
        let (mut corrected, mut uncorrected, mut pending, mut failed) = (0, 0, 0, 0);
        let asked = call!(
            self.table,
            nvmlDeviceGetRemappedRows,
            self.handle.0,
            &raw mut corrected,
            &raw mut uncorrected,
            &raw mut pending,
            &raw mut failed
        );
        let remapping = RowRemapping { pending: pending != 0, failed: failed != 0 };
        Ok(asked.optional()?.map(|()| remapping))
    }

    /// Whether a page waits to be retired at the next reset; `None` for a GPU that retires none, as
    /// those that replace rows.
    pub fn page_retirement_pending(&self) -> Result<Option<bool>> {
        let asked: Result<u32> =
            get!(self.table, nvmlDeviceGetRetiredPagesPendingStatus, self.handle.0);
        Ok(asked
            .optional()?
            .map(|pending| pending == sys::nvmlEnableState_enum_NVML_FEATURE_ENABLED))
    }

    /// Errors since the driver was loaded that ECC could not correct; `None` without ECC.
    pub fn uncorrected_errors(&self) -> Result<Option<u64>> {
        let kind = sys::nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_UNCORRECTED;
        let since = sys::nvmlEccCounterType_enum_NVML_VOLATILE_ECC;
        get!(self.table, nvmlDeviceGetTotalEccErrors, self.handle.0, kind, since).optional()
    }
}
