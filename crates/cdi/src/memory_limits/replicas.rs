//! Limits of replicas that have a given memory. The number of a container's replicas decides the limit, and nobody knows it
//! beforehand: the document of GPUs has a device for each number.

use std::{collections::BTreeMap, path::Path};

use windlass_core::{
    cdi::{ContainerEdits, SpecDevice},
    device::{Device, DeviceId},
    enforcement::Enforcement,
    inventory::Inventory,
};

use super::{DriverLimit, GpuMemory, LimitRecords, LimitRules, WeakLimit};

/// Replicas of a GPU that have a given memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaSize {
    /// Memory of each in MiB.
    pub memory_mib: u64,
    /// Most replicas of a container.
    pub most: u32,
}

/// Records of replicas, and the devices of the CDI document that name the hook.
#[derive(Clone, Debug)]
pub struct ReplicaLimits(LimitRecords);

/// Limits of replicas on disk.
#[derive(Clone, Debug, Default)]
pub struct KeptLimits {
    /// Devices for the document of GPUs.
    pub devices: Vec<SpecDevice>,
    /// GPUs whose record could not be written, with the reason.
    pub failed: BTreeMap<DeviceId, String>,
}

/// Name of the limit of so many replicas in the document of GPUs.
pub fn replica_name(gpu: &DeviceId, replicas: u32) -> String {
    format!("{}{replicas}", replica_prefix(gpu))
}

fn replica_prefix(gpu: &DeviceId) -> String {
    format!("{gpu}-x")
}

// === impl ReplicaLimits ===

impl ReplicaLimits {
    /// Records below this state folder.
    pub fn new(state_dir: &Path) -> Self {
        Self(LimitRecords::of_replicas(state_dir))
    }

    /// Limit of a container with so many replicas of a GPU. Pure.
    pub fn limit(
        &self,
        each: &GpuMemory,
        replicas: u32,
        rules: LimitRules<'_>,
    ) -> Result<Option<DriverLimit>, WeakLimit> {
        rules.limit_of_replicas(each, replicas, &self.0.path(each.device.as_str()))
    }

    /// Writes the wanted records and removes others. `before` are the devices of the present document: those of GPUs that
    /// the driver cannot limit any more stay, because containers with their names may start again. Blocks.
    pub fn reconcile(
        &self,
        wanted: &BTreeMap<DeviceId, ReplicaSize>,
        before: impl FnOnce() -> Vec<SpecDevice>,
        inventory: &Inventory,
        rules: LimitRules<'_>,
    ) -> KeptLimits {
        self.0.retain(|name| wanted.contains_key(name));
        let (mut kept, mut unlimited) = (KeptLimits::default(), Vec::new());
        for (id, size) in wanted {
            let of_mib = inventory.get(id.as_str()).and_then(Device::memory_mib);
            let (memory_mib, device) = (size.memory_mib, id.clone());
            let each = of_mib.map(|of_mib| GpuMemory {
                device,
                memory_mib,
                of_mib,
                is_by_mps: false,
                required: Enforcement::None,
            });
            match each.map_or(Ok(Vec::new()), |each| self.devices(&each, size.most, rules)) {
                Ok(devices) if devices.is_empty() => unlimited.push(replica_prefix(id)),
                Ok(devices) => kept.devices.extend(devices),
                Err(why) => drop(kept.failed.insert(id.clone(), why)),
            }
        }
        if !unlimited.is_empty() {
            let is_of =
                |device: &SpecDevice| unlimited.iter().any(|it| device.name.starts_with(it));
            kept.devices.extend(before().into_iter().filter(is_of));
        }
        kept
    }

    /// Writes the record of a GPU. Returns a device for each number of replicas that is not all of the GPU.
    fn devices(
        &self,
        each: &GpuMemory,
        most: u32,
        rules: LimitRules<'_>,
    ) -> Result<Vec<SpecDevice>, String> {
        let fit = u32::try_from(each.of_mib / each.memory_mib.max(1)).unwrap_or_default();
        let mut devices = Vec::new();
        for replicas in 1..=fit.min(most) {
            // A limit that is too weak is refused when the kubelet allocates.
            let Ok(Some(limit)) = self.limit(each, replicas, rules) else { continue };
            if devices.is_empty() {
                self.0.settle(each.device.as_str(), Some(&limit.record))?;
            }
            let edits = ContainerEdits { hooks: vec![limit.hook()], ..ContainerEdits::default() };
            devices.push(SpecDevice::new(replica_name(&each.device, replicas), edits));
        }
        Ok(devices)
    }
}
