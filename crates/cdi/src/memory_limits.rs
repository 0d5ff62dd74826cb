//! Memory limits of shared GPUs: the means of the node, the limit of a container, and the records on disk.

mod driver_limits;
mod hook_limit;
mod means;
mod records;
mod replicas;

use windlass_config::{Shared, SharingMethod};
use windlass_core::{
    device::{Device, DeviceId},
    enforcement::Enforcement,
    pci::PciAddress,
};

pub use self::{
    driver_limits::{MemoryLimitPaths, NoMemoryLimits},
    hook_limit::{HookLimit, LimitRules, WeakLimitError},
    means::LimitSupport,
    records::{LimitRecords, LimitedHolders, limited_holders},
    replicas::{ReplicaDevices, ReplicaLimits, ReplicaSize, WrittenLimits, replica_name},
};

/// Memory of a GPU that a container may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuMemory {
    /// The GPU.
    pub device: DeviceId,
    /// Limit of the container in MiB; 0 if it requests no memory.
    pub limit_mib: u64,
    /// Memory of the whole GPU in MiB.
    pub total_mib: u64,
    /// True if an MPS daemon limits the memory.
    pub is_by_mps: bool,
    /// The weakest enforcement that the method of sharing requires.
    pub required: Enforcement,
    /// PCI address of a GPU whose memory the kernel limits (DRM); `None` for an NVIDIA GPU.
    pub drm_address: Option<PciAddress>,
}

// === impl GpuMemory ===

impl GpuMemory {
    /// Memory of a replica; `None` if the configuration gives replicas no memory, or the GPU's memory is unknown.
    pub fn from_replica(gpu: &Device, shared: Shared) -> Option<Self> {
        let is_by_mps = shared.method == SharingMethod::Mps;
        let required = shared.method.required_enforcement();
        Some(Self { is_by_mps, required, ..Self::with_limit(gpu, shared.memory_mib?)? })
    }

    /// Limit on a GPU without an MPS daemon; `None` if the GPU's memory is unknown.
    pub fn with_limit(gpu: &Device, limit_mib: u64) -> Option<Self> {
        let (device, total_mib) = (gpu.id.clone(), gpu.memory_mib()?);
        Some(Self {
            device,
            limit_mib,
            total_mib,
            is_by_mps: false,
            required: Enforcement::None,
            drm_address: gpu.drm_pci_address(),
        })
    }

    /// Memory of this many replicas.
    fn multiplied_by(&self, replicas: u32) -> Self {
        let limit_mib = self.limit_mib.saturating_mul(replicas.into());
        Self { limit_mib, ..self.clone() }
    }

    /// True if the limit is a part of the GPU's memory, so that it has to be enforced.
    fn is_part(&self) -> bool {
        (1..self.total_mib).contains(&self.limit_mib)
    }
}
