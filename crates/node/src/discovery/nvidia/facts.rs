//! What NVML says of a GPU, read in one go. Everything here blocks, and may block for ever.

use windlass_nvml::{EventSet, Gpu, MigMode, MigShare, NvLink, Nvml, NvmlError};

/// The driver as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DriverFacts {
    pub(super) version: String,
    /// Newest CUDA version, `12.8`.
    pub(super) cuda: Option<String>,
    pub(super) simulated: Option<String>,
}

/// One GPU.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct GpuFacts {
    pub(super) gpu: Gpu,
    pub(super) uuid: String,
    pub(super) name: String,
    pub(super) minor: u32,
    pub(super) brand: Option<String>,
    pub(super) architecture: Option<&'static str>,
    pub(super) compute_capability: Option<(u32, u32)>,
    pub(super) serial: Option<String>,
    pub(super) pci_bus_id: String,
    pub(super) memory_bytes: Option<u64>,
    pub(super) nvlinks: Vec<NvLink>,
    pub(super) mig: MigFacts,
}

/// Whether and how the GPU is cut.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum MigFacts {
    /// It cannot be.
    Unsupported,
    /// It is whole.
    Disabled,
    /// Into these instances.
    Enabled(Vec<InstanceFacts>),
}

/// One MIG instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InstanceFacts {
    pub(super) uuid: String,
    /// `1g.10gb`
    pub(super) profile: String,
    pub(super) gpu_instance: u32,
    pub(super) compute_instance: u32,
    pub(super) share: MigShare,
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
    /// Probes a GPU. Facts that cannot change while the driver runs are taken from `known`, if that
    /// is the same GPU cut in the same way; else everything is read, and its faults are watched.
    pub(super) fn probe(
        nvml: &Nvml,
        events: &EventSet,
        index: u32,
        known: Option<Self>,
    ) -> Result<Self, NvmlError> {
        let gpu = nvml.gpu(index)?;
        let uuid = gpu.uuid()?;
        gpu.memory()?;
        let mig = MigFacts::read(&gpu)?;
        match known {
            Some(known) if known.uuid == uuid && known.mig == mig && known.gpu == gpu => Ok(known),
            _ => {
                events.watch(&gpu)?;
                Self::read(gpu, mig)
            }
        }
    }

    fn read(gpu: Gpu, mig: MigFacts) -> Result<Self, NvmlError> {
        Ok(Self {
            uuid: gpu.uuid()?,
            name: gpu.name()?,
            minor: gpu.minor()?,
            // Facts that a pod may select by, but that the device can serve without.
            brand: gpu.brand().ok().map(|brand| brand.to_string()),
            architecture: gpu.architecture().ok().flatten(),
            compute_capability: gpu.compute_capability().ok(),
            serial: gpu.serial().ok().flatten(),
            pci_bus_id: gpu.pci_bus_id()?,
            memory_bytes: gpu.memory()?.map(|memory| memory.total),
            nvlinks: gpu.nvlinks()?,
            mig,
            gpu,
        })
    }
}

// === impl MigFacts ===

impl MigFacts {
    fn read(gpu: &Gpu) -> Result<Self, NvmlError> {
        Ok(match gpu.mig_mode()? {
            MigMode::Unsupported => Self::Unsupported,
            MigMode::Disabled => Self::Disabled,
            MigMode::Enabled => {
                let instances = gpu.mig_instances()?;
                let facts = instances.iter().map(InstanceFacts::read);
                Self::Enabled(facts.collect::<Result<_, _>>()?)
            }
        })
    }
}

impl InstanceFacts {
    fn read(instance: &windlass_nvml::MigInstance) -> Result<Self, NvmlError> {
        let name = instance.device.name()?;
        Ok(Self {
            uuid: instance.device.uuid()?,
            profile: profile_in(&name).to_owned(),
            gpu_instance: instance.gpu_instance,
            compute_instance: instance.compute_instance,
            share: instance.share,
        })
    }
}

/// NVML names an instance after its GPU and profile, `NVIDIA A100-SXM4-40GB MIG 1g.5gb`.
fn profile_in(name: &str) -> &str {
    name.rsplit_once(" MIG ").map_or(name, |(_, profile)| profile)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instances_profile_is_the_end_of_its_name() {
        assert_eq!(profile_in("NVIDIA A100-SXM4-40GB MIG 1g.5gb"), "1g.5gb");
        assert_eq!(profile_in("NVIDIA H100 80GB HBM3 MIG 1g.10gb+me"), "1g.10gb+me");
        assert_eq!(profile_in("1g.5gb"), "1g.5gb");
    }
}
