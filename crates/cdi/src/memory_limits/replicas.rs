//! Limits of replicas that have a given memory. The number of a container's replicas decides the limit, and nobody knows it
//! beforehand: the document of the GPU's kind has a device for each number.

use std::{collections::BTreeMap, path::Path};

use windlass_core::{
    cdi::{ContainerEdits, Kind, SpecDevice},
    device::DeviceId,
    inventory::Inventory,
};

use super::{GpuMemory, HookLimit, LimitRecords, LimitRules, WeakLimit};
use crate::kind_of;

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

/// Devices that name the hook, by the kind of their document.
pub type ReplicaDevices = BTreeMap<Kind, Vec<SpecDevice>>;

/// Limits of replicas on disk.
#[derive(Clone, Debug, Default)]
pub struct KeptLimits {
    /// Further devices of the documents.
    pub devices: ReplicaDevices,
    /// GPUs whose record could not be written, with the reason.
    pub failed: BTreeMap<DeviceId, String>,
}

/// Name of the limit of this many replicas in the document of the GPU.
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

    /// Limit of a container with this many replicas of a GPU. Pure.
    pub fn limit(
        &self,
        each: &GpuMemory,
        replicas: u32,
        rules: LimitRules<'_>,
    ) -> Result<Option<HookLimit>, WeakLimit> {
        rules.limit_of_replicas(each, replicas, &self.0.path(each.device.as_str()))
    }

    /// Writes the wanted records and removes others. `before` are the devices of the present documents: those of GPUs
    /// that cannot be limited any more stay, because containers with their names may start again. Blocks.
    pub fn reconcile(
        &self,
        wanted: &BTreeMap<DeviceId, ReplicaSize>,
        before: impl FnOnce() -> ReplicaDevices,
        inventory: &Inventory,
        rules: LimitRules<'_>,
    ) -> KeptLimits {
        self.0.retain(|name| wanted.contains_key(name));
        let (mut kept, mut unlimited) = (KeptLimits::default(), Vec::new());
        for (id, size) in wanted {
            let gpu = inventory.get(id.as_str());
            let each = gpu.and_then(|gpu| Some((gpu, GpuMemory::of(gpu, size.memory_mib)?)));
            let Some((gpu, each)) = each else {
                unlimited.push(replica_prefix(id));
                continue;
            };
            match self.devices(&each, size.most, rules) {
                Ok(devices) if devices.is_empty() => unlimited.push(replica_prefix(id)),
                Ok(devices) => kept.devices.entry(kind_of(gpu)).or_default().extend(devices),
                Err(why) => drop(kept.failed.insert(id.clone(), why)),
            }
        }
        if !unlimited.is_empty() {
            let is_of =
                |device: &SpecDevice| unlimited.iter().any(|it| device.name.starts_with(it));
            for (kind, devices) in before() {
                kept.devices.entry(kind).or_default().extend(devices.into_iter().filter(is_of));
            }
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
        let fit = u32::try_from(each.total_mib / each.limit_mib.max(1)).unwrap_or_default();
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
