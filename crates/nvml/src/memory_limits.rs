//! Memory limits per cgroup, which the driver enforces since version 615.
//!
//! A limit applies to the total of a cgroup's processes. An allocation beyond the hard limit fails with "out of
//! memory". The driver stores the limits in the kernel's `dmem` controller or in its own table. Managed memory is not
//! charged.

use std::{
    ffi::{CString, c_char},
    os::unix::ffi::OsStrExt as _,
    path::Path,
};

use nvml_wrapper_sys::bindings as sys;

use crate::{
    Nvml, NvmlError, Result,
    error::at_most,
    gpu::{Gpu, MAX_MEMORY},
    library::{call, find},
};

/// Memory limits of a cgroup on one GPU, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimits {
    /// Guaranteed memory in bytes. The driver also sets it on the ancestors of the cgroup, where it stays after the
    /// cgroup is removed.
    pub soft: u64,
    /// Maximum use of memory in bytes; `None` for no limit.
    pub hard: Option<u64>,
}

/// Memory limits of a cgroup on one GPU as the driver reports them, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportedMemoryLimits {
    /// Guaranteed memory.
    pub soft: u64,
    /// Maximum use of memory in bytes; `None` for no limit.
    pub hard: Option<u64>,
    /// Memory of all processes of the cgroup.
    pub used: u64,
}

/// `nvmlSetMemoryLimits_v1_t` of CUDA 13.4, which the bindings lack.
#[repr(C)]
struct SetMemoryLimits {
    cgroup: *const c_char,
    soft: u64,
    hard: u64,
}

/// `nvmlGetMemoryLimits_v1_t` of CUDA 13.4.
#[repr(C)]
struct GetMemoryLimits {
    cgroup: *const c_char,
    soft: u64,
    hard: u64,
    used: u64,
}

#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<SetMemoryLimits>() == 24 && size_of::<GetMemoryLimits>() == 32);

type SetMemoryLimitsFn =
    unsafe extern "C" fn(sys::nvmlDevice_t, *mut SetMemoryLimits) -> sys::nvmlReturn_t;
type GetMemoryLimitsFn =
    unsafe extern "C" fn(sys::nvmlDevice_t, *mut GetMemoryLimits) -> sys::nvmlReturn_t;

/// Value of an absent limit, which is `max` in the files of cgroups.
const NO_LIMIT: u64 = u64::MAX;

const GET: &str = "nvmlDeviceGetMemoryLimits_v1";

impl Nvml {
    /// True if the library exports the functions of memory limits. The driver may still not support them.
    pub fn has_memory_limits(&self) -> bool {
        let library = &self.table.library;
        find!(library, nvmlDeviceSetMemoryLimits_v1: SetMemoryLimitsFn).is_some()
            && find!(library, nvmlDeviceGetMemoryLimits_v1: GetMemoryLimitsFn).is_some()
    }
}

impl Gpu {
    /// Sets the limits of a cgroup v2, given by its directory's full path. Needs root. A MIG device has no limits.
    ///
    /// # Errors
    ///
    /// [`NvmlError::is_absent`] for a cgroup that the driver cannot find, [`NvmlError::is_unsupported`] for a driver
    /// without limits.
    pub fn set_memory_limits(&self, cgroup: &Path, limits: MemoryLimits) -> Result<()> {
        let cgroup = c_path("nvmlDeviceSetMemoryLimits_v1", cgroup)?;
        let mut request = SetMemoryLimits {
            cgroup: cgroup.as_ptr(),
            soft: limits.soft,
            hard: limits.hard.unwrap_or(NO_LIMIT),
        };
        call!(self.table, nvmlDeviceSetMemoryLimits_v1: SetMemoryLimitsFn, self.handle.0, &raw mut request)
    }

    /// Limits of a cgroup. `None` if no limit was set, and also if the driver has no accounting.
    ///
    /// # Errors
    ///
    /// As [`Self::set_memory_limits`].
    pub fn memory_limits(&self, cgroup: &Path) -> Result<Option<ReportedMemoryLimits>> {
        let cgroup = c_path(GET, cgroup)?;
        let mut answer = GetMemoryLimits { cgroup: cgroup.as_ptr(), soft: 0, hard: 0, used: 0 };
        match call!(self.table, nvmlDeviceGetMemoryLimits_v1: GetMemoryLimitsFn, self.handle.0, &raw mut answer)
        {
            Ok(()) => ReportedMemoryLimits::from_answer(&answer).map(Some),
            Err(error) if error.code == sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED => Ok(None),
            Err(error) => Err(error),
        }
    }
}

// === impl ReportedMemoryLimits ===

impl ReportedMemoryLimits {
    fn from_answer(answer: &GetMemoryLimits) -> Result<Self> {
        let hard = (answer.hard != NO_LIMIT).then_some(answer.hard);
        Ok(Self {
            soft: answer.soft,
            hard: hard.map(|hard| at_most(GET, hard, MAX_MEMORY)).transpose()?,
            used: at_most(GET, answer.used, MAX_MEMORY)?,
        })
    }
}

/// Path as a C string. A path with a NUL is an invalid argument.
fn c_path(call: &'static str, path: &Path) -> Result<CString> {
    let code = sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT;
    CString::new(path.as_os_str().as_bytes()).map_err(|_| NvmlError { call, code })
}
