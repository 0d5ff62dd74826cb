//! Memory limits of replicas with a configured memory. The limit depends on the number of a container's replicas, which
//! is unknown beforehand. So the CDI document of the GPU's kind has a device for each number.

use std::{collections::BTreeMap, path::Path};

use windlass_core::{
    cdi::{ContainerEdits, Kind, SpecDevice},
    device::DeviceId,
    inventory::Inventory,
};

use super::{GpuMemory, HookLimit, LimitRecords, LimitRules, WeakLimit};
use crate::kind_of;

/// Memory and largest number of a GPU's replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaSize {
    /// Memory of each in MiB.
    pub memory_mib: u64,
    /// Limit on the replicas of a container.
    pub most: u32,
}

/// Records of replicas, and the devices for the CDI document that run the hook.
#[derive(Clone, Debug)]
pub struct ReplicaLimits(LimitRecords);

/// Devices of CDI documents that run the hook, by the kind of their document.
pub type ReplicaDevices = BTreeMap<Kind, Vec<SpecDevice>>;

/// Result of writing the records of replicas.
#[derive(Clone, Debug, Default)]
pub struct KeptLimits {
    /// Further devices for the documents.
    pub devices: ReplicaDevices,
    /// GPUs whose record could not be written, with the reason.
    pub failed: BTreeMap<DeviceId, String>,
}

/// Name, in the CDI document, of the limit for this many replicas of a GPU.
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

    /// Limit of a container with this many replicas of a GPU. Reads and writes nothing.
    pub fn limit(
        &self,
        each: &GpuMemory,
        replicas: u32,
        rules: LimitRules<'_>,
    ) -> Result<Option<HookLimit>, WeakLimit> {
        rules.limit_of_replicas(each, replicas, &self.0.path(each.device.as_str()))
    }

    /// Writes the wanted records and removes others. `before` returns the devices of the documents on disk: the
    /// limits of a GPU that can no longer be limited stay, because containers with their names may start again. Blocks.
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

    /// Writes the record of a GPU. Returns a device for each number of replicas that needs a limit.
    fn devices(
        &self,
        each: &GpuMemory,
        most: u32,
        rules: LimitRules<'_>,
    ) -> Result<Vec<SpecDevice>, String> {
        let fit = u32::try_from(each.total_mib / each.limit_mib.max(1)).unwrap_or_default();
        let mut devices = Vec::new();
        for replicas in 1..=fit.min(most) {
            // If the limit is too weak, the agent refuses the kubelet's Allocate.
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
