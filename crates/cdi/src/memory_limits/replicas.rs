//! Limits of replicas that have a given memory: their number decides the limit, so all are on disk beforehand.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use windlass_config::Policy;
use windlass_core::{
    cdi::{ContainerEdits, SpecDevice},
    device::{Device, DeviceId},
    inventory::Inventory,
};

use super::{DriverLimit, GpuMemory, LimitMeans, LimitRecords, WeakLimit};

/// Memory of a replica of each GPU, in MiB.
pub type ReplicaMemory = BTreeMap<DeviceId, u64>;

/// Records of replicas, and the devices of the CDI document that name the hook.
#[derive(Clone, Debug)]
pub struct ReplicaLimits(LimitRecords);

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
        policy: &Policy,
        means: &LimitMeans,
    ) -> Result<Option<DriverLimit>, WeakLimit> {
        let path = self.0.path(each.device.as_str());
        DriverLimit::of_replicas(each, replicas, &path, policy, means)
    }

    /// Writes the records and removes others, but those of `held` GPUs: their containers may start again. Returns the devices
    /// for the document. Blocks.
    pub fn keep(
        &self,
        wanted: &ReplicaMemory,
        held: &BTreeSet<DeviceId>,
        (inventory, policy, means): (&Inventory, &Policy, &LimitMeans),
    ) -> Result<Vec<SpecDevice>, String> {
        let mut all = wanted.clone();
        for gpu in held.iter().filter(|gpu| !wanted.contains_key(*gpu)) {
            let record = self.0.read(gpu.as_str());
            let limit = record.as_ref().and_then(|record| record.gpus().first());
            all.extend(limit.map(|limit| (gpu.clone(), limit.hard_mib)));
        }
        self.0.retain(|name| all.contains_key(name));
        let mut devices = Vec::new();
        for (id, memory_mib) in &all {
            let Some(gpu) = inventory.get(id.as_str()) else { continue };
            for (replicas, limit) in self.limits(gpu, *memory_mib, policy, means) {
                if replicas == 1 {
                    self.0.settle(id.as_str(), Some(&limit.record))?;
                }
                let edits =
                    ContainerEdits { hooks: vec![limit.hook()], ..ContainerEdits::default() };
                devices.push(SpecDevice::new(replica_name(id, replicas), edits));
            }
        }
        Ok(devices)
    }

    /// Limits of all numbers of replicas that fit on a GPU and are not all of it.
    fn limits(
        &self,
        gpu: &Device,
        memory_mib: u64,
        policy: &Policy,
        means: &LimitMeans,
    ) -> impl Iterator<Item = (u32, DriverLimit)> {
        let of_mib = gpu.memory_mib().unwrap_or_default();
        let each = GpuMemory { device: gpu.id.clone(), memory_mib, of_mib, is_by_mps: false };
        let most = u32::try_from(of_mib / memory_mib.max(1)).unwrap_or_default();
        (1..=most).filter_map(move |replicas| {
            Some((replicas, self.limit(&each, replicas, policy, means).ok()??))
        })
    }
}
