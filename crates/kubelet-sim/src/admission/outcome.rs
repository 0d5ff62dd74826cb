//! What an admitted pod got: devices, how they were chosen and what came with them.

use std::collections::BTreeMap;

use crate::{
    device::DeviceIds,
    grant::Grant,
    manager::{Manager, Undecided},
    pod::Pod,
};

/// A pod that was admitted, and what its containers hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// UID of the pod.
    pub pod_uid: String,
    /// Containers in the order of admission: init containers first.
    pub containers: Vec<ContainerAdmission>,
}

/// What one container holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerAdmission {
    /// Container name.
    pub name: String,
    /// By resource. A resource that no plugin ever registered is missing: such a pod is admitted
    /// without devices.
    pub resources: BTreeMap<String, Allotment>,
}

/// Devices of one resource, how they were chosen and what comes with them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allotment {
    /// Ids by NUMA node, -1 for none.
    pub devices: BTreeMap<i64, Vec<String>>,
    /// The plugin's answer.
    pub grant: Grant,
    /// What the plugin was asked before, if it was.
    pub preference: Option<Question>,
}

/// A `GetPreferredAllocation` call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// Devices to choose from.
    pub available: DeviceIds,
    /// Devices that are taken in any case.
    pub must_include: DeviceIds,
    /// How many there shall be in the end.
    pub size: usize,
    /// The plugin's answer as it came.
    pub answer: Vec<String>,
}

/// What the plugin was asked, by container and resource.
pub(super) type Questions = BTreeMap<(String, String), Question>;

// === impl Admission ===

impl Admission {
    pub(super) fn of(manager: &Manager, pod: &Pod, mut questions: Questions) -> Self {
        let containers = pod.in_admission_order().map(|container| {
            let holdings = manager.holdings.container(&pod.uid, &container.name);
            let resources = holdings.into_iter().flatten().map(|(resource, held)| {
                let key = (container.name.clone(), resource.clone());
                let allotment = Allotment {
                    devices: held.by_numa.clone(),
                    grant: held.grant.clone(),
                    preference: questions.remove(&key),
                };
                (resource.clone(), allotment)
            });
            ContainerAdmission { name: container.name.clone(), resources: resources.collect() }
        });
        let containers = containers.collect();
        Self { pod_uid: pod.uid.clone(), containers }
    }

    /// What a container holds of a resource.
    pub fn allotment(&self, container: &str, resource: &str) -> Option<&Allotment> {
        self.containers.iter().find(|found| found.name == container)?.resources.get(resource)
    }
}

// === impl Allotment ===

impl Allotment {
    /// The ids, each once.
    pub fn ids(&self) -> DeviceIds {
        self.devices.values().flatten().cloned().collect()
    }
}

// === impl Question ===

impl Question {
    pub(super) fn about(undecided: &Undecided) -> Self {
        Self {
            available: undecided.available(),
            must_include: undecided.taken.clone(),
            size: undecided.request.size,
            answer: Vec::new(),
        }
    }
}
