//! Properties of a GPU.

use std::{fmt, sync::Arc};

use nvml_wrapper_sys::bindings as sys;

use crate::{
    Result,
    error::{NvmlError, UnsupportedAsNone as _, at_most},
    library::{Table, Zeros, call, get, get_at_most, get_text, text_in},
};

/// A GPU, or a MIG instance for methods whose documentation allows one.
#[derive(Clone)]
pub struct Gpu {
    pub(crate) table: Arc<Table>,
    pub(crate) handle: Handle,
}

/// Opaque device pointer of NVML, constant until shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Handle(pub(crate) sys::nvmlDevice_t);

/// Frame buffer memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// All memory, including memory that the driver reserves.
    pub total: u64,
    /// Used memory. Drivers before 510 count the memory that they reserve too.
    pub used: u64,
}

/// Product brand (`nvmlBrandType_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Brand(u32);

/// Largest minor number: 20 bits (`MINORBITS` in `linux/kdev_t.h`).
const MAX_MINOR: u32 = (1 << 20) - 1;

/// Upper bound of memory in bytes: one PiB, a thousand times any GPU's.
pub(crate) const MAX_MEMORY: u64 = 1 << 50;

// SAFETY: the pointer is an opaque handle that only NVML dereferences, and NVML is thread-safe.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

// === impl Gpu ===

impl Gpu {
    pub(crate) fn new(table: Arc<Table>, handle: sys::nvmlDevice_t) -> Self {
        Self { table, handle: Handle(handle) }
    }

    /// UUID: `GPU-` and 36 characters; `MIG-` for a MIG instance.
    pub fn uuid(&self) -> Result<String> {
        get_text!(self.table, nvmlDeviceGetUUID, self.handle.0)
    }

    /// Product name, `NVIDIA H100 80GB HBM3`.
    pub fn name(&self) -> Result<String> {
        get_text!(self.table, nvmlDeviceGetName, self.handle.0)
    }

    /// Board serial number, if it has one.
    pub fn serial(&self) -> Result<Option<String>> {
        get_text!(self.table, nvmlDeviceGetSerial, self.handle.0).unsupported_as_none()
    }

    /// Minor number: the N of `/dev/nvidiaN`.
    pub fn minor(&self) -> Result<u32> {
        get_at_most!(self.table, nvmlDeviceGetMinorNumber, self.handle.0; MAX_MINOR)
    }

    /// Product brand.
    pub fn brand(&self) -> Result<Brand> {
        get!(self.table, nvmlDeviceGetBrand, self.handle.0).map(Brand)
    }

    /// Chip architecture, `Hopper`; `None` for an unknown one.
    pub fn architecture(&self) -> Result<Option<&'static str>> {
        let number: u32 = get!(self.table, nvmlDeviceGetArchitecture, self.handle.0)?;
        Ok(match number {
            sys::NVML_DEVICE_ARCH_KEPLER => Some("Kepler"),
            sys::NVML_DEVICE_ARCH_MAXWELL => Some("Maxwell"),
            sys::NVML_DEVICE_ARCH_PASCAL => Some("Pascal"),
            sys::NVML_DEVICE_ARCH_VOLTA => Some("Volta"),
            sys::NVML_DEVICE_ARCH_TURING => Some("Turing"),
            sys::NVML_DEVICE_ARCH_AMPERE => Some("Ampere"),
            sys::NVML_DEVICE_ARCH_ADA => Some("Ada Lovelace"),
            sys::NVML_DEVICE_ARCH_HOPPER => Some("Hopper"),
            sys::NVML_DEVICE_ARCH_BLACKWELL => Some("Blackwell"),
            _ => None,
        })
    }

    /// CUDA compute capability, (major, minor).
    pub fn compute_capability(&self) -> Result<(u32, u32)> {
        let (mut major, mut minor) = (0, 0);
        call!(
            self.table,
            nvmlDeviceGetCudaComputeCapability,
            self.handle.0,
            &raw mut major,
            &raw mut minor
        )?;
        let number = |part: i32| {
            u32::try_from(part)
                .map_err(|_| NvmlError::invalid_answer("nvmlDeviceGetCudaComputeCapability"))
        };
        Ok((number(major)?, number(minor)?))
    }

    /// PCI address in NVML's spelling, `00000000:1B:00.0`.
    pub fn pci_bus_id(&self) -> Result<String> {
        let info = get!(self.table, nvmlDeviceGetPciInfo_v3, self.handle.0)?;
        Ok(text_in(&info.busId))
    }

    /// Frame buffer memory; `None` for a GPU that uses the host's memory. The driver queries the device, so a
    /// successful call proves that the GPU responds.
    pub fn memory(&self) -> Result<Option<Memory>> {
        match self.memory_v2().unsupported_as_none()? {
            Some(memory) => Ok(Some(Memory { total: memory.total, used: memory.used })),
            None => self.memory_before_510(),
        }
    }

    /// Used memory of a GPU or MIG device in bytes, excluding memory that the driver reserves. Unsupported before
    /// driver 510, which does not separate the two.
    pub fn memory_used(&self) -> Result<u64> {
        self.memory_v2().map(|memory| memory.used)
    }

    fn memory_v2(&self) -> Result<sys::nvmlMemory_v2_t> {
        let version = versioned::<sys::nvmlMemory_v2_t>(2);
        let request = sys::nvmlMemory_v2_t { version, ..Zeros::zeros() };
        let memory = get!(self.table, nvmlDeviceGetMemoryInfo_v2, self.handle.0; request)?;
        at_most("nvmlDeviceGetMemoryInfo_v2", memory.total, MAX_MEMORY)?;
        Ok(memory)
    }

    /// Reads the first version of the structure, for drivers before 510.
    fn memory_before_510(&self) -> Result<Option<Memory>> {
        let memory: Result<sys::nvmlMemory_t> =
            get!(self.table, nvmlDeviceGetMemoryInfo, self.handle.0);
        let Some(memory) = memory.unsupported_as_none()? else { return Ok(None) };
        at_most("nvmlDeviceGetMemoryInfo", memory.total, MAX_MEMORY)?;
        Ok(Some(Memory { total: memory.total, used: memory.used }))
    }
}

impl PartialEq for Gpu {
    /// True for the same device, if both are of one initialisation of NVML.
    fn eq(&self, other: &Self) -> bool {
        self.handle == other.handle
    }
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Gpu").field(&self.handle).finish()
    }
}

/// Version field of a structure: size, and version in the last byte (`NVML_STRUCT_VERSION` in `nvml.h`).
pub(crate) fn versioned<T>(version: u32) -> u32 {
    u32::try_from(size_of::<T>()).expect("NVML structures are small") | version << 24
}

// === impl Brand ===

impl fmt::Display for Brand {
    /// Spelling of NVIDIA's gpu-feature-discovery.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            sys::nvmlBrandType_enum_NVML_BRAND_QUADRO => "Quadro",
            sys::nvmlBrandType_enum_NVML_BRAND_TESLA => "Tesla",
            sys::nvmlBrandType_enum_NVML_BRAND_NVS => "NVS",
            sys::nvmlBrandType_enum_NVML_BRAND_GRID => "Grid",
            sys::nvmlBrandType_enum_NVML_BRAND_GEFORCE => "GeForce",
            sys::nvmlBrandType_enum_NVML_BRAND_TITAN => "Titan",
            sys::nvmlBrandType_enum_NVML_BRAND_NVIDIA_VAPPS => "NvidiaVApps",
            sys::nvmlBrandType_enum_NVML_BRAND_NVIDIA_VPC => "NvidiaVPC",
            sys::nvmlBrandType_enum_NVML_BRAND_NVIDIA_VCS => "NvidiaVCS",
            sys::nvmlBrandType_enum_NVML_BRAND_NVIDIA_VWS => "NvidiaVWS",
            sys::nvmlBrandType_enum_NVML_BRAND_NVIDIA_CLOUD_GAMING => "NvidiaCloudGaming",
            sys::nvmlBrandType_enum_NVML_BRAND_QUADRO_RTX => "QuadroRTX",
            sys::nvmlBrandType_enum_NVML_BRAND_NVIDIA_RTX => "NvidiaRTX",
            sys::nvmlBrandType_enum_NVML_BRAND_NVIDIA => "Nvidia",
            sys::nvmlBrandType_enum_NVML_BRAND_GEFORCE_RTX => "GeForceRTX",
            sys::nvmlBrandType_enum_NVML_BRAND_TITAN_RTX => "TitanRTX",
            _ => "Unknown",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_fields_contain_the_size_of_the_structure() {
        // nvmlMemory_v2 is 0x2000028 in NVIDIA's own bindings: 40 bytes, version 2.
        assert_eq!(versioned::<sys::nvmlMemory_v2_t>(2), 0x0200_0028);
    }
}
