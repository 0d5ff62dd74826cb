//! Outcome of an admission: allocated devices of each container, with the plugins' answers.

use std::collections::BTreeMap;

use crate::{
    device::DeviceIds,
    grant::RunContainerOptions,
    manager::{Manager, PendingChoice},
    pod::Pod,
};

/// An admitted pod and the devices allocated to its containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// UID of the pod.
    pub pod_uid: String,
    /// Containers in the order of admission: init containers first.
    pub containers: Vec<ContainerAdmission>,
}

/// Devices allocated to one container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerAdmission {
    /// Container name.
    pub name: String,
    /// Allocated devices by resource. A resource that no plugin registered is missing: the kubelet admits
    /// such a pod without devices of it.
    pub resources: BTreeMap<String, ContainerAllocation>,
}

/// Devices of one resource, allocated to one container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerAllocation {
    /// Device ids by NUMA node; -1 for devices without a node.
    pub devices: BTreeMap<i64, Vec<String>>,
    /// Run options from the plugin's answer to `Allocate`.
    pub run_options: RunContainerOptions,
    /// The `GetPreferredAllocation` call of this admission, if the kubelet made one.
    pub preferred_call: Option<PreferredAllocationCall>,
}

/// A `GetPreferredAllocation` call and its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreferredAllocationCall {
    /// Devices to choose from, including those of `must_include`.
    pub available: DeviceIds,
    /// Devices that the answer has to contain.
    pub must_include: DeviceIds,
    /// Number of devices to allocate, including those of `must_include`.
    pub size: usize,
    /// Device ids in the plugin's answer, not validated.
    pub preferred: Vec<String>,
}

/// `GetPreferredAllocation` calls by container and resource.
pub(super) type PreferredAllocationCalls = BTreeMap<(String, String), PreferredAllocationCall>;

// === impl Admission ===

impl Admission {
    pub(super) fn of(
        manager: &Manager,
        pod: &Pod,
        mut preferred_calls: PreferredAllocationCalls,
    ) -> Self {
        let containers = pod.in_admission_order().map(|container| {
            let holdings = manager.holdings.container(&pod.uid, &container.name);
            let resources = holdings.into_iter().flatten().map(|(resource, holding)| {
                let key = (container.name.clone(), resource.clone());
                let allocation = ContainerAllocation {
                    devices: holding.by_numa.clone(),
                    run_options: holding.run_options.clone(),
                    preferred_call: preferred_calls.remove(&key),
                };
                (resource.clone(), allocation)
            });
            ContainerAdmission { name: container.name.clone(), resources: resources.collect() }
        });
        let containers = containers.collect();
        Self { pod_uid: pod.uid.clone(), containers }
    }

    /// Devices of a resource, allocated to a container.
    pub fn allocation(&self, container: &str, resource: &str) -> Option<&ContainerAllocation> {
        self.containers
            .iter()
            .find(|admission| admission.name == container)?
            .resources
            .get(resource)
    }
}

// === impl ContainerAllocation ===

impl ContainerAllocation {
    /// Device ids, each once.
    pub fn ids(&self) -> DeviceIds {
        self.devices.values().flatten().cloned().collect()
    }
}

// === impl PreferredAllocationCall ===

impl PreferredAllocationCall {
    /// The call for a pending choice, before its answer.
    pub(super) fn from_choice(choice: &PendingChoice) -> Self {
        Self {
            available: choice.available(),
            must_include: choice.chosen.clone(),
            size: choice.request.size,
            preferred: Vec::new(),
        }
    }
}
