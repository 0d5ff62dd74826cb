//! Loaded NVML library: versions, GPUs, event sets.

use std::{
    ffi::{CStr, c_char},
    fmt,
    path::Path,
    sync::Arc,
};

use crate::{
    Result,
    error::LoadError,
    event::EventSet,
    gpu::Gpu,
    library::{Table, get, get_at_most, get_text},
};

/// Loaded and initialised NVML. It is shut down when the last clone, [`Gpu`] and [`EventSet`] are dropped.
#[derive(Clone)]
pub struct Nvml {
    pub(crate) table: Arc<Table>,
}

/// The newest CUDA version that the driver supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaVersion {
    /// Major version.
    pub major: u32,
    /// Minor version.
    pub minor: u32,
}

/// Upper bound of the number of GPUs: minor numbers of the driver's nodes have one byte.
const MAX_GPUS: u32 = 256;

// === impl Nvml ===

impl Nvml {
    /// Opens and initialises the library at `path`. A bare file name uses the dynamic linker's search path.
    pub fn load(path: &Path) -> Result<Self, LoadError> {
        Ok(Self { table: Arc::new(Table::load(path)?) })
    }

    /// Machine profile, if the library is the simulated driver of Windlass.
    pub fn simulated(&self) -> Option<String> {
        type Function = unsafe extern "C" fn() -> *const c_char;
        // SAFETY: only the simulated driver of Windlass exports this symbol, with this signature.
        let profile =
            unsafe { self.table.library.get::<Function>(b"windlass_simulated_machine\0") };
        let profile = profile.ok()?;
        // SAFETY: the function has no parameters, and returns null or text that lives as long as the library.
        let text = unsafe { profile() };
        // SAFETY: not null, NUL-terminated and alive, by the contract above.
        (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }

    /// Driver version, `580.95.05`.
    pub fn driver_version(&self) -> Result<String> {
        get_text!(self.table, nvmlSystemGetDriverVersion)
    }

    /// Newest CUDA version that the driver supports.
    pub fn cuda_version(&self) -> Result<CudaVersion> {
        /// `NVML_CUDA_DRIVER_VERSION_MAJOR` in `nvml.h`: 12080 is 12.8.
        const MAJOR: u32 = 1000;
        let number: i32 = get!(self.table, nvmlSystemGetCudaDriverVersion_v2)?;
        let number = number.unsigned_abs();
        Ok(CudaVersion { major: number / MAJOR, minor: number % MAJOR / 10 })
    }

    /// Number of GPUs, failed ones included.
    pub fn gpu_count(&self) -> Result<u32> {
        get_at_most!(self.table, nvmlDeviceGetCount_v2; MAX_GPUS)
    }

    /// The GPU at an index below [`Self::gpu_count`]. NVML orders GPUs by PCI address.
    pub fn gpu(&self, index: u32) -> Result<Gpu> {
        let handle = get!(self.table, nvmlDeviceGetHandleByIndex_v2, index)?;
        Ok(Gpu::new(self.table.clone(), handle))
    }

    /// An empty event set.
    pub fn event_set(&self) -> Result<EventSet> {
        EventSet::new(self.table.clone())
    }
}

impl fmt::Debug for Nvml {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nvml").finish_non_exhaustive()
    }
}
