//! Facts of driver, GPU and MIG instances, read from NVML. All reads block, possibly forever.

use std::{collections::BTreeMap, sync::Arc};

use windlass_core::device::{DeviceId, ExtraEdits, PossiblePartition};
use windlass_nvml::{Gpu, GpuInstanceInfo, MigCapacities, MigMode, Nvml, NvmlError, Remote};

use super::conditions::Conditions;
use crate::mig::{id_of, mig_profile_in};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DriverFacts {
    pub(super) version: String,
    /// Newest CUDA version, `12.8`.
    pub(super) cuda: Option<String>,
    /// Machine profile of a simulated driver.
    pub(super) simulated: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct GpuFacts {
    pub(super) gpu: Gpu,
    pub(super) id: DeviceId,
    pub(super) name: String,
    pub(super) minor: Option<u32>,
    pub(super) brand: Option<String>,
    pub(super) architecture: Option<&'static str>,
    pub(super) compute_capability: Option<(u32, u32)>,
    pub(super) serial: Option<String>,
    pub(super) pci_bus_id: Option<String>,
    pub(super) memory_bytes: Option<u64>,
    pub(super) links: LinkFacts,
    pub(super) mig: MigFacts,
    /// Possible partitions; `None` while they are unknown, or not read.
    pub(super) partitions: Option<Arc<[PossiblePartition]>>,
    pub(super) conditions: Conditions,
    /// DRM nodes, which may appear later than the GPU.
    pub(super) graphics: ExtraEdits,
}

/// NVLinks of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LinkFacts {
    pub(super) generation: Option<u32>,
    /// Active links, by the driver's numbers.
    pub(super) up: Vec<u32>,
    /// Remote end of each active link, in the same order.
    pub(super) remotes: Vec<Remote>,
    /// Links that were up before and are down now, with their remote ends.
    pub(super) lost: BTreeMap<u32, Remote>,
}

/// MIG mode and instances.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum MigFacts {
    /// The GPU has no MIG.
    Unsupported,
    /// MIG is off: the GPU is undivided.
    Disabled,
    /// MIG is on, with these instances.
    Enabled(Vec<InstanceFacts>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InstanceFacts {
    pub(super) index: u32,
    pub(super) id: DeviceId,
    /// `1g.10gb`
    pub(super) profile: String,
    pub(super) gpu_instance: u32,
    pub(super) compute_instance: u32,
    pub(super) capacities: MigCapacities,
    /// Profile and placement, if the agent has the permission to read them.
    pub(super) instance_info: Option<GpuInstanceInfo>,
}

// === impl DriverFacts ===

impl DriverFacts {
    pub(super) fn read(nvml: &Nvml) -> Result<Self, NvmlError> {
        Ok(Self {
            version: nvml.driver_version()?,
            cuda: nvml.cuda_version().ok().map(|cuda| format!("{}.{}", cuda.major, cuda.minor)),
            simulated: nvml.simulated(),
        })
    }
}

// === impl GpuFacts ===

impl GpuFacts {
    /// Reads the facts that a probe reads again only after a change of MIG instances or links.
    pub(super) fn read(
        gpu: Gpu,
        id: DeviceId,
        mig: MigFacts,
        links: LinkFacts,
    ) -> Result<Self, NvmlError> {
        Ok(Self {
            id,
            name: gpu.name()?,
            // A device without a minor number is described but not offered.
            minor: gpu.minor().ok(),
            // Optional facts for selectors.
            brand: gpu.brand().ok().map(|brand| brand.to_string()),
            architecture: gpu.architecture().ok().flatten(),
            compute_capability: gpu.compute_capability().ok(),
            serial: gpu.serial().ok().flatten(),
            pci_bus_id: gpu.pci_bus_id().ok(),
            memory_bytes: memory(&gpu, &mig)?,
            links,
            conditions: Conditions::default(),
            graphics: ExtraEdits::default(),
            partitions: None,
            mig,
            gpu,
        })
    }

    pub(super) fn is_in_mig_mode(&self) -> bool {
        matches!(self.mig, MigFacts::Enabled(_))
    }

    pub(super) fn instances(&self) -> &[InstanceFacts] {
        match &self.mig {
            MigFacts::Enabled(instances) => instances,
            MigFacts::Unsupported | MigFacts::Disabled => &[],
        }
    }
}

/// Total memory in bytes; `None` in MIG mode without the monitor capability. The read also proves that the GPU answers.
pub(super) fn memory(gpu: &Gpu, mig: &MigFacts) -> Result<Option<u64>, NvmlError> {
    match gpu.memory() {
        Err(error) if error.is_no_permission() && matches!(mig, MigFacts::Enabled(_)) => Ok(None),
        memory => Ok(memory?.map(|memory| memory.total)),
    }
}

// === impl LinkFacts ===

impl LinkFacts {
    /// Reads the remote ends of active links. `lost` contains links that were active before.
    pub(super) fn read(gpu: &Gpu, up: Vec<u32>, lost: BTreeMap<u32, Remote>) -> Self {
        Self {
            generation: up.first().and_then(|&link| gpu.nvlink_generation(link)),
            remotes: up.iter().map(|&link| gpu.nvlink_remote(link)).collect(),
            up,
            lost,
        }
    }
}

// === impl MigFacts ===

impl MigFacts {
    /// Reads MIG mode and instances. An instance whose read fails is skipped, and logged if the instances changed.
    pub(super) fn read(gpu: &Gpu, last: Option<&Self>) -> Result<Self, NvmlError> {
        let instances = match gpu.mig_mode()? {
            MigMode::Unsupported => return Ok(Self::Unsupported),
            MigMode::Disabled => return Ok(Self::Disabled),
            MigMode::Enabled => gpu.mig_instances()?.into_iter(),
        };
        let (mut facts, mut errors) = (Vec::new(), Vec::new());
        for result in instances.map(|instance| InstanceFacts::read(gpu, &instance?)) {
            match result {
                Ok(instance) => facts.push(instance),
                // The instance is being removed.
                Err(error) if error.is_absent() => {}
                Err(error) => errors.push(error),
            }
        }
        let mig_facts = Self::Enabled(facts);
        for error in errors.into_iter().filter(|_| last != Some(&mig_facts)) {
            tracing::warn!(%error, "MIG instance skipped, its driver data is incomplete: check the driver version");
        }
        Ok(mig_facts)
    }
}

impl InstanceFacts {
    fn read(gpu: &Gpu, instance: &windlass_nvml::MigInstance) -> Result<Self, NvmlError> {
        let name = instance.device.name()?;
        Ok(Self {
            index: instance.index,
            id: id_of(&instance.device)?,
            profile: mig_profile_in(&name).to_owned(),
            gpu_instance: instance.gpu_instance,
            compute_instance: instance.compute_instance,
            capacities: instance.capacities,
            instance_info: gpu
                .gpu_instance(instance.gpu_instance)
                .and_then(|gpu_instance| gpu_instance.info())
                .ok(),
        })
    }
}
