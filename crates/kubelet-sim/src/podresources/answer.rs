//! Answers of the pod resources API, made from the device manager's state.

use std::collections::BTreeMap;

use windlass_kubelet_api::podresources as wire;

use crate::{
    manager::{Held, Manager, PodRecord},
    pod::Pod,
};

/// Active pods. Init containers that run to completion are left out, held devices or not.
pub(super) fn list(manager: &Manager) -> Vec<wire::PodResources> {
    let active = manager.pods.values().filter(|record| record.is_active());
    active.map(|record| pod_resources(manager, &record.pod)).collect()
}

/// One active pod.
pub(super) fn find(manager: &Manager, namespace: &str, name: &str) -> Option<wire::PodResources> {
    let mut active = manager.pods.values().filter(|record| PodRecord::is_active(record));
    let found = active.find(|record| record.pod.namespace == namespace && record.pod.name == name);
    found.map(|record| pod_resources(manager, &record.pod))
}

/// Healthy devices, held ones too. One entry for each of a device's NUMA nodes, so a device whose
/// topology has no nodes is missing.
pub(super) fn allocatable(manager: &Manager) -> Vec<wire::ContainerDevices> {
    let mut devices = Vec::new();
    for (resource, healthy) in &manager.healthy {
        let listed = manager.devices.get(resource).into_iter().flatten();
        for (id, device) in listed.filter(|(id, _)| healthy.contains(*id)) {
            match &device.numa_nodes {
                None => devices.push(entry(resource, id, None)),
                Some(nodes) => {
                    devices.extend(nodes.iter().map(|node| entry(resource, id, Some(*node))));
                }
            }
        }
    }
    devices
}

fn pod_resources(manager: &Manager, pod: &Pod) -> wire::PodResources {
    let containers = pod.long_lived().map(|container| {
        let holdings = manager.holdings.container(&pod.uid, &container.name);
        let devices =
            holdings.into_iter().flatten().flat_map(|(name, held)| held_devices(name, held));
        wire::ContainerResources {
            name: container.name.clone(),
            devices: devices.collect(),
            ..Default::default()
        }
    });
    wire::PodResources {
        name: pod.name.clone(),
        namespace: pod.namespace.clone(),
        containers: containers.collect(),
    }
}

/// One entry for each device and NUMA node, as at the time of allocation.
fn held_devices(resource: &str, held: &Held) -> Vec<wire::ContainerDevices> {
    let mut by_id = BTreeMap::<&String, Vec<i64>>::new();
    for (node, ids) in &held.by_numa {
        for id in ids {
            by_id.entry(id).or_default().extend((*node >= 0).then_some(*node));
        }
    }
    let entries = by_id.into_iter().flat_map(|(id, nodes)| {
        if nodes.is_empty() {
            vec![entry(resource, id, None)]
        } else {
            nodes.into_iter().map(|node| entry(resource, id, Some(node))).collect()
        }
    });
    entries.collect()
}

fn entry(resource: &str, id: &str, node: Option<i64>) -> wire::ContainerDevices {
    wire::ContainerDevices {
        resource_name: resource.to_owned(),
        device_ids: vec![id.to_owned()],
        topology: node.map(|id| wire::TopologyInfo { nodes: vec![wire::NumaNode { id }] }),
    }
}
