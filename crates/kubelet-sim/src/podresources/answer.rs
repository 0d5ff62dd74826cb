//! Answers of the pod resources API, built from the managers' state.

use std::collections::BTreeMap;

use windlass_kubelet_api::podresources as wire;

use crate::{
    dra::{Claim, PodClaim},
    manager::{Holding, Manager, PodRecord},
    manager_task::ManagerTask,
    pod::Pod,
};

/// Active pods that the kubelet knows. Init containers that run to completion are left out, even if
/// they hold devices.
pub(super) fn list(task: &ManagerTask) -> Vec<wire::PodResources> {
    let active = task.manager.pods.values().filter(|record| record.is_active());
    let known_pods = active.filter(|record| task.knows_pod(&record.pod.uid));
    known_pods.map(|record| pod_resources(task, &record.pod)).collect()
}

/// The active pod with this name.
pub(super) fn find(task: &ManagerTask, namespace: &str, name: &str) -> Option<wire::PodResources> {
    let mut active = task.manager.pods.values().filter(|record| PodRecord::is_active(record));
    let record = active.find(|record| record.pod.namespace == namespace && record.pod.name == name);
    record.map(|record| pod_resources(task, &record.pod))
}

/// Healthy devices, allocated or not. A device has one entry per NUMA node, so a device whose topology
/// has no nodes is missing. A device without topology has one entry.
pub(super) fn allocatable(manager: &Manager) -> Vec<wire::ContainerDevices> {
    let mut devices = Vec::new();
    for (resource, healthy) in &manager.healthy {
        let listed = manager.devices.get(resource).into_iter().flatten();
        for (id, device) in listed.filter(|(id, _)| healthy.contains(*id)) {
            match &device.numa_nodes {
                None => devices.push(container_devices(resource, id, None)),
                Some(nodes) => {
                    devices.extend(
                        nodes.iter().map(|node| container_devices(resource, id, Some(*node))),
                    );
                }
            }
        }
    }
    devices
}

fn pod_resources(task: &ManagerTask, pod: &Pod) -> wire::PodResources {
    let containers = pod.long_lived().map(|container| {
        let holdings = task.manager.holdings.container(&pod.uid, &container.name);
        let devices =
            holdings.into_iter().flatten().flat_map(|(name, holding)| held_devices(name, holding));
        wire::ContainerResources {
            name: container.name.clone(),
            devices: devices.collect(),
            dynamic_resources: dynamic_resources(task, pod, &container.name),
            ..Default::default()
        }
    });
    wire::PodResources {
        name: pod.name.clone(),
        namespace: pod.namespace.clone(),
        containers: containers.collect(),
    }
}

/// Each claim that the container uses, with the devices of all its requests. If one of these claims is
/// unknown, the list is empty.
fn dynamic_resources(task: &ManagerTask, pod: &Pod, container: &str) -> Vec<wire::DynamicResource> {
    let used_claims = pod.claims.iter().filter(|claim| claim.uses_of(container).next().is_some());
    let find_claim = |claim: &PodClaim| task.dra.claims.get(&claim.id.namespace, &claim.id.name);
    let claims: Result<Vec<&Claim>, _> = used_claims.map(find_claim).collect();
    claims.unwrap_or_default().into_iter().map(dynamic_resource).collect()
}

fn dynamic_resource(claim: &Claim) -> wire::DynamicResource {
    let mut claim_resources = Vec::new();
    for (driver, state) in &claim.state.drivers {
        // The real kubelet accumulates the CDI names over a driver's devices. So each device also has
        // the names of the devices before it.
        let mut cdi_devices = Vec::new();
        for device in state.devices.iter().flatten() {
            let names = device.cdi_device_ids.iter().flatten();
            cdi_devices.extend(names.map(|name| wire::CdiDevice { name: name.clone() }));
            claim_resources.push(wire::ClaimResource {
                cdi_devices: cdi_devices.clone(),
                driver_name: driver.clone(),
                pool_name: device.pool_name.clone(),
                device_name: device.device_name.clone(),
                share_id: device.share_id.clone(),
            });
        }
    }
    wire::DynamicResource {
        claim_name: claim.state.claim_name.clone(),
        claim_namespace: claim.state.namespace.clone(),
        claim_resources,
    }
}

/// One entry per device and NUMA node, with the nodes at the time of allocation.
fn held_devices(resource: &str, holding: &Holding) -> Vec<wire::ContainerDevices> {
    let mut by_id = BTreeMap::<&String, Vec<i64>>::new();
    for (node, ids) in &holding.by_numa {
        for id in ids {
            by_id.entry(id).or_default().extend((*node >= 0).then_some(*node));
        }
    }
    let entries = by_id.into_iter().flat_map(|(id, nodes)| {
        if nodes.is_empty() {
            vec![container_devices(resource, id, None)]
        } else {
            nodes.into_iter().map(|node| container_devices(resource, id, Some(node))).collect()
        }
    });
    entries.collect()
}

fn container_devices(resource: &str, id: &str, node: Option<i64>) -> wire::ContainerDevices {
    wire::ContainerDevices {
        resource_name: resource.to_owned(),
        device_ids: vec![id.to_owned()],
        topology: node.map(|id| wire::TopologyInfo { nodes: vec![wire::NumaNode { id }] }),
    }
}
