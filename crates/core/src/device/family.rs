//! Built-in device families: one row of declared facts each.
//!
//! Layers above discovery read this table instead of comparing source names.

use super::{Device, SourceName};
use crate::attribute::AttributeName;

/// Declared facts of a device family.
#[derive(Debug)]
pub struct Family {
    name: &'static str,
    /// Class of the family's CDI documents, if it differs from the source name.
    pub cdi_class: Option<&'static str>,
    /// Prefix of short GPU names, if it is not the source name in capitals.
    pub prefix: Option<&'static str>,
    /// Way in which the family's devices are partitioned.
    pub partitioning: Partitioning,
    /// True if NVIDIA's container toolkit serves containers with these devices: variables, device indexes, IMEX
    /// channels.
    pub has_toolkit: bool,
    /// True if the driver manages GPUs: MPS, time slices, compute processes, resets.
    pub has_nvml: bool,
    /// Mechanism that can limit a cgroup's memory on the family's GPUs.
    pub memory_limiter: Option<MemoryLimiter>,
    /// Name of the capacity with a GPU's memory, if the driver reports it.
    pub memory: Option<&'static AttributeName>,
    /// True if programming a device changes its function, as for FPGAs. The attributes show the function.
    pub is_programmable: bool,
    /// Attribute of every device that its driver describes. A device that is only found on the bus lacks it.
    pub driver_attribute: Option<&'static AttributeName>,
}

/// Way in which a family's devices are partitioned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Partitioning {
    /// No partitions.
    Never,
    /// Parts of the same kind, offered in place of the whole.
    Parts,
    /// MIG instances, by strategy or for claims.
    Mig,
}

/// Mechanism that limits a cgroup's memory on a GPU, and reports the memory of processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryLimiter {
    /// NVIDIA's driver, which also lists processes.
    Driver,
    /// The kernel, by the controller `dmem`; its DRM drivers describe their clients by `fdinfo`.
    Kernel,
}

static PRODUCT_NAME: AttributeName = AttributeName::new("nvidia.com", "productName");
static NVIDIA_MEMORY: AttributeName = AttributeName::new("nvidia.com", "memory");
static AMD_MEMORY: AttributeName = AttributeName::new("amd.com", "memory");
static INTEL_MEMORY: AttributeName = AttributeName::new("gpu.intel.com", "memory");

/// Defaults; also the facts of configured sources.
const DEFAULT_FAMILY: Family = Family {
    name: "",
    cdi_class: None,
    prefix: None,
    partitioning: Partitioning::Never,
    has_toolkit: false,
    has_nvml: false,
    memory_limiter: None,
    memory: None,
    is_programmable: false,
    driver_attribute: None,
};

#[rustfmt::skip]
static FAMILIES: &[Family] = &[
    Family {
        name: "nvidia", cdi_class: Some("gpu"), prefix: Some("GPU"), partitioning: Partitioning::Mig, has_toolkit: true, has_nvml: true,
        memory_limiter: Some(MemoryLimiter::Driver), memory: Some(&NVIDIA_MEMORY), is_programmable: false, driver_attribute: Some(&PRODUCT_NAME),
    },
    Family { name: "nics", cdi_class: Some("nic"), ..DEFAULT_FAMILY },
    Family {
        name: "amd", partitioning: Partitioning::Parts, memory_limiter: Some(MemoryLimiter::Kernel), memory: Some(&AMD_MEMORY),
        ..DEFAULT_FAMILY
    },
    Family { name: "intel", memory_limiter: Some(MemoryLimiter::Kernel), memory: Some(&INTEL_MEMORY), ..DEFAULT_FAMILY },
    Family { name: "fpga", is_programmable: true, ..DEFAULT_FAMILY },
    Family { name: "nvme", ..DEFAULT_FAMILY },
];

// === impl SourceName ===

impl SourceName {
    /// NVIDIA's GPUs and their MIG instances.
    pub const NVIDIA: Self = Self::from_static("nvidia");
    /// Source of GPUs for a rule that names no source.
    pub const DEFAULT_GPUS: Self = Self::NVIDIA;
    /// Network interfaces.
    pub const NICS: Self = Self::from_static("nics");
    /// AMD's GPUs and their partitions.
    pub const AMD: Self = Self::from_static("amd");
    /// Intel's GPUs.
    pub const INTEL: Self = Self::from_static("intel");
    /// FPGAs.
    pub const FPGA: Self = Self::from_static("fpga");
    /// NVMe drives: located for topology, never allocated.
    pub const NVME: Self = Self::from_static("nvme");

    /// Sources of GPUs whose memory can be limited per cgroup.
    pub fn with_limited_memory() -> impl Iterator<Item = Self> {
        let limited = FAMILIES.iter().filter(|family| family.memory_limiter.is_some());
        limited.map(|family| Self::from_static(family.name))
    }

    /// The sources of this table, in its order.
    pub fn built_in() -> impl Iterator<Item = Self> {
        FAMILIES.iter().map(|family| Self::from_static(family.name))
    }

    /// True for families of this table.
    pub fn is_built_in(&self) -> bool {
        FAMILIES.iter().any(|family| family.name == self.as_str())
    }

    /// Declared facts of the source's family.
    pub fn family(&self) -> &'static Family {
        FAMILIES.iter().find(|family| family.name == self.as_str()).unwrap_or(&DEFAULT_FAMILY)
    }
}

// === impl Device ===

impl Device {
    /// Declared facts of the device's family.
    pub fn family(&self) -> &'static Family {
        self.source.family()
    }
}
