//! Memory limits of replicas with a configured memory. The limit depends on the number of a container's replicas, which
//! is unknown beforehand. So the CDI document of the GPU's kind has a device for each number.

use std::{collections::BTreeMap, path::Path};

use windlass_core::{
    cdi::{ContainerEdits, Kind, SpecDevice},
    device::DeviceId,
    inventory::Inventory,
};

use super::{GpuMemory, HookLimit, LimitRecords, LimitRules, WeakLimitError};
use crate::kind_of;

/// Memory and largest number of a GPU's replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaSize {
    /// Memory of each in MiB.
    pub memory_mib: u64,
    /// Limit on the replicas of a container.
    pub max_replicas: u32,
}

/// Records of replicas, and the devices for the CDI document that run the hook.
#[derive(Clone, Debug)]
pub struct ReplicaLimits(LimitRecords);

/// Devices of CDI documents that run the hook, by the kind of their document.
pub type ReplicaDevices = BTreeMap<Kind, Vec<SpecDevice>>;

/// Records of replicas that were written, and failures.
#[derive(Clone, Debug, Default)]
pub struct WrittenLimits {
    /// Further devices for the documents.
    pub devices: ReplicaDevices,
    /// GPUs whose record could not be written, with the reason.
    pub errors: BTreeMap<DeviceId, String>,
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
        replica: &GpuMemory,
        replicas: u32,
        rules: LimitRules<'_>,
    ) -> Result<Option<HookLimit>, WeakLimitError> {
        rules.limit_of_replicas(replica, replicas, &self.0.path(replica.device.as_str()))
    }

    /// Writes the desired records and removes others. `on_disk` returns the devices of the documents on disk: those of
    /// a GPU that can no longer be limited are retained, because containers with their names may start again. Blocks.
    pub fn reconcile(
        &self,
        desired: &BTreeMap<DeviceId, ReplicaSize>,
        on_disk: impl FnOnce() -> ReplicaDevices,
        inventory: &Inventory,
        rules: LimitRules<'_>,
    ) -> WrittenLimits {
        self.0.retain(|name| desired.contains_key(name));
        let (mut limits, mut unlimited_prefixes) = (WrittenLimits::default(), Vec::new());
        for (id, size) in desired {
            let gpu = inventory.get(id.as_str());
            let replica =
                gpu.and_then(|gpu| Some((gpu, GpuMemory::with_limit(gpu, size.memory_mib)?)));
            let Some((gpu, replica)) = replica else {
                unlimited_prefixes.push(replica_prefix(id));
                continue;
            };
            match self.devices(&replica, size.max_replicas, rules) {
                Ok(devices) if devices.is_empty() => unlimited_prefixes.push(replica_prefix(id)),
                Ok(devices) => limits.devices.entry(kind_of(gpu)).or_default().extend(devices),
                Err(reason) => drop(limits.errors.insert(id.clone(), reason)),
            }
        }
        if !unlimited_prefixes.is_empty() {
            let is_unlimited = |device: &SpecDevice| {
                unlimited_prefixes.iter().any(|prefix| device.name.starts_with(prefix))
            };
            for (kind, devices) in on_disk() {
                limits
                    .devices
                    .entry(kind)
                    .or_default()
                    .extend(devices.into_iter().filter(is_unlimited));
            }
        }
        limits
    }

    /// Writes the record of a GPU. Returns a device for each number of replicas that needs a limit.
    fn devices(
        &self,
        replica: &GpuMemory,
        max_replicas: u32,
        rules: LimitRules<'_>,
    ) -> Result<Vec<SpecDevice>, String> {
        let max_fitting =
            u32::try_from(replica.total_mib / replica.limit_mib.max(1)).unwrap_or_default();
        let mut devices = Vec::new();
        for replicas in 1..=max_fitting.min(max_replicas) {
            // If the limit is too weak, the agent refuses the kubelet's Allocate.
            let Ok(Some(limit)) = self.limit(replica, replicas, rules) else { continue };
            if devices.is_empty() {
                self.0.write_or_remove(replica.device.as_str(), Some(&limit.record))?;
            }
            let edits = ContainerEdits { hooks: vec![limit.hook()], ..ContainerEdits::default() };
            devices.push(SpecDevice::new(replica_name(&replica.device, replicas), edits));
        }
        Ok(devices)
    }
}
