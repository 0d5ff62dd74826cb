//! Limits of replicas that have a given memory. The number of a container's replicas decides the limit, and nobody knows it
//! beforehand: the document of GPUs has a device for each number.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use windlass_core::{
    cdi::{ContainerEdits, SpecDevice},
    device::DeviceId,
    inventory::Inventory,
};

use super::{DriverLimit, GpuMemory, LimitRecords, LimitRules, WeakLimit};

/// Memory of a replica of each GPU, in MiB.
pub type ReplicaMemory = BTreeMap<DeviceId, u64>;

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
    format!("{gpu}-x{replicas}")
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

    /// Writes the wanted records and removes others. Those of `held` GPUs stay: their containers may start again. Blocks.
    pub fn reconcile(
        &self,
        wanted: &ReplicaMemory,
        held: &BTreeSet<DeviceId>,
        inventory: &Inventory,
        rules: LimitRules<'_>,
    ) -> KeptLimits {
        let mut all = wanted.clone();
        for gpu in held.iter().filter(|gpu| !wanted.contains_key(*gpu)) {
            let record = self.0.read(gpu.as_str());
            let limit = record.as_ref().and_then(|record| record.gpus().first());
            all.extend(limit.map(|limit| (gpu.clone(), limit.hard_mib)));
        }
        self.0.retain(|name| all.contains_key(name));
        let mut kept = KeptLimits::default();
        for (id, memory_mib) in all {
            let of_mib = inventory.get(id.as_str()).and_then(|gpu| gpu.memory_mib());
            let Some(of_mib) = of_mib else { continue };
            let each = GpuMemory { device: id.clone(), memory_mib, of_mib, is_by_mps: false };
            match self.devices(&each, rules) {
                Ok(devices) => kept.devices.extend(devices),
                Err(why) => drop(kept.failed.insert(id, why)),
            }
        }
        kept
    }

    /// Writes the record of a GPU. Returns a device for each number of replicas that is not all of the GPU.
    fn devices(&self, each: &GpuMemory, rules: LimitRules<'_>) -> Result<Vec<SpecDevice>, String> {
        let most = u32::try_from(each.of_mib / each.memory_mib.max(1)).unwrap_or_default();
        let mut devices = Vec::new();
        for replicas in 1..=most {
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
