//! Outcome of an admission: devices of each container, the plugin's answer and its preference.

use std::collections::BTreeMap;

use crate::{
    device::DeviceIds,
    grant::Grant,
    manager::{Manager, Undecided},
    pod::Pod,
};

/// An admitted pod and the holdings of its containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// UID of the pod.
    pub pod_uid: String,
    /// Containers in the order of admission: init containers first.
    pub containers: Vec<ContainerAdmission>,
}

/// Holdings of one container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerAdmission {
    /// Container name.
    pub name: String,
    /// Allotments by resource. A resource without any registration is missing: its pod is admitted
    /// without devices.
    pub resources: BTreeMap<String, Allotment>,
}

/// Devices of one resource, the preference behind them and the plugin's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allotment {
    /// Device ids by NUMA node, -1 for none.
    pub devices: BTreeMap<i64, Vec<String>>,
    /// The plugin's answer.
    pub grant: Grant,
    /// The preceding `GetPreferredAllocation` call, if the kubelet made one.
    pub preference: Option<Question>,
}

/// A `GetPreferredAllocation` call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// Devices to choose from.
    pub available: DeviceIds,
    /// Devices that every answer has to contain.
    pub must_include: DeviceIds,
    /// Number of devices to allocate, those of `must_include` among them.
    pub size: usize,
    /// The plugin's answer, unchecked.
    pub answer: Vec<String>,
}

/// `GetPreferredAllocation` calls by container and resource.
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

    /// Allotment of a container from a resource.
    pub fn allotment(&self, container: &str, resource: &str) -> Option<&Allotment> {
        self.containers.iter().find(|found| found.name == container)?.resources.get(resource)
    }
}

// === impl Allotment ===

impl Allotment {
    /// Device ids, each once.
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
