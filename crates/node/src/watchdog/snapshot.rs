//! Memory on shared GPUs at one moment, as metrics show it.

use std::collections::BTreeMap;

use windlass_core::device::DeviceId;
use windlass_host::container::ContainerId;

use super::{
    accounts::Accounts,
    limits::{GpuLimits, Limits},
    tenants::Tenants,
};
use crate::metrics::{ContainerMemory, HolderLimit, SharedMemory, WatchedGpu};

/// All shared GPUs.
pub(super) fn snapshot(
    limits: &Limits,
    accounts: &Accounts,
    tenants: &Tenants,
    blind: &BTreeMap<DeviceId, String>,
) -> SharedMemory {
    let gpu = |(device, limits): (&DeviceId, &GpuLimits)| {
        let limits = limits.iter().map(|(holder, mib)| HolderLimit {
            namespace: holder.namespace.clone(),
            name: holder.name.clone(),
            is_claim: !holder.is_share(),
            mib,
        });
        let gpu = WatchedGpu {
            is_measured: !blind.contains_key(device),
            limits: limits.collect(),
            containers: containers(device, accounts, tenants),
        };
        (device.clone(), gpu)
    };
    limits.iter().map(gpu).collect()
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
