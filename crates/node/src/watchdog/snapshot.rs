//! Memory on shared GPUs at one moment, as metrics show it.

use std::collections::{BTreeMap, BTreeSet};

use windlass_allocations::ledger::ClaimRef;
use windlass_core::{device::DeviceId, enforcement::Enforcement};
use windlass_host::container::ContainerId;

use super::{
    accounts::Accounts,
    limits::{GpuLimits, Limit, Limits},
    tenants::Tenants,
};
use crate::metrics::{ContainerMemory, HolderLimit, SharedMemory, WatchedGpu};

/// Means against excess on the shared GPUs.
#[derive(Debug, Default)]
pub(super) struct GpuStates {
    /// True if the watchdog acts.
    pub(super) acts: bool,
    /// Reasons why GPUs cannot be measured.
    pub(super) blind: BTreeMap<DeviceId, String>,
    /// Pods that the driver limits on each GPU, by the kubelet's UID.
    pub(super) limited: BTreeMap<DeviceId, BTreeSet<String>>,
}

/// All shared GPUs.
pub(super) fn snapshot(
    limits: &Limits,
    accounts: &Accounts,
    tenants: &Tenants,
    state: &GpuStates,
) -> SharedMemory {
    let gpu = |(device, limits): (&DeviceId, &GpuLimits)| {
        let limits = limits.iter().map(|(holder, limit)| HolderLimit {
            namespace: holder.namespace.clone(),
            name: holder.name.clone(),
            is_claim: !holder.is_share(),
            mib: limit.mib,
            by: state.enforcement(device, holder, limit),
        });
        let gpu = WatchedGpu {
            is_measured: state.is_measured(device),
            limits: limits.collect(),
            containers: containers(device, accounts, tenants),
        };
        (device.clone(), gpu)
    };
    limits.iter().map(gpu).collect()
}

// === impl GpuStates ===

impl GpuStates {
    /// Forgets all other GPUs.
    pub(super) fn retain(&mut self, limits: &Limits) {
        self.blind.retain(|device, _| limits.contains_key(device));
        self.limited.retain(|device, _| limits.contains_key(device));
    }

    fn is_measured(&self, device: &DeviceId) -> bool {
        !self.blind.contains_key(device)
    }

    /// The strongest means that was seen to work for a holder.
    fn enforcement(&self, device: &DeviceId, holder: &ClaimRef, limit: Limit) -> Enforcement {
        let of_gpu = self.limited.get(device);
        if holder.pod_of_share().is_some_and(|pod| of_gpu.is_some_and(|pods| pods.contains(pod))) {
            Enforcement::Driver
        } else if limit.is_mps {
            Enforcement::Mps
        } else if self.acts && self.is_measured(device) {
            Enforcement::Watched
        } else {
            Enforcement::None
        }
    }
}

fn containers(device: &DeviceId, accounts: &Accounts, tenants: &Tenants) -> Vec<ContainerMemory> {
    let usages = accounts.usages().filter(|(known, ..)| *known == device);
    let mut bytes = BTreeMap::new();
    for process in usages.flat_map(|(.., usage)| &usage.processes) {
        *bytes.entry(&process.container).or_default() += process.bytes;
    }
    let memory = |(container, bytes): (&ContainerId, u64)| {
        let pod = tenants.get(&container.pod).map(|tenant| &tenant.pod);
        ContainerMemory {
            namespace: pod.map(|pod| pod.namespace.clone()).unwrap_or_default(),
            pod: pod.map_or_else(|| container.pod.clone(), |pod| pod.name.clone()),
            container: tenants.container(container).unwrap_or(&container.id).to_owned(),
            bytes,
        }
    };
    bytes.into_iter().map(memory).collect()
}
