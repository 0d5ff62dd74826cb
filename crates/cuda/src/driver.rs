//! Loaded CUDA driver library, and its first device.

use std::{fmt, path::Path};

use crate::{Result, device::Device, error::LoadError, table::Table};

/// Loaded and initialised CUDA driver library. It cannot be shut down before the exit of the process.
pub struct Cuda {
    table: Table,
}

// === impl Cuda ===

impl Cuda {
    /// Opens and initialises the library at `path`. A bare file name uses the dynamic linker's search path.
    pub fn load(path: &Path) -> Result<Self, LoadError> {
        Ok(Self { table: Table::load(path)? })
    }

    /// First visible device.
    pub fn first_device(&self) -> Result<Device<'_>> {
        Device::first_visible(&self.table)
    }
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cuda").finish_non_exhaustive()
    }
}
