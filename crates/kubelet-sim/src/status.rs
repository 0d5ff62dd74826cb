//! Snapshot of the node for callers.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use crate::{
    device::{Device, DeviceIds},
    dra::{ClaimDeviceHealth, ClaimStatus, Dra, DriverStatus},
    manager::{Endpoint, Manager, PodRecord},
};

/// State of the node and its kubelet at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeStatus {
    /// State of the kubelet.
    pub kubelet: Condition,
    /// Extended resources in the node's status. A registered resource is absent before its first
    /// list. A resource whose plugin stays away remains, with capacity 0.
    pub resources: BTreeMap<String, ResourceStatus>,
    /// Plugins by resource.
    pub registrations: BTreeMap<String, Registration>,
    /// Pods by UID.
    pub pods: BTreeMap<String, PodStatus>,
    /// Endpoints of DRA drivers by driver, the newest last.
    pub drivers: BTreeMap<String, Vec<DriverStatus>>,
    /// Claims that pods use, by `namespace/name`.
    pub claims: BTreeMap<String, ClaimStatus>,
}

/// State of the kubelet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Condition {
    /// The kubelet serves.
    Running,
    /// The kubelet was stopped; its sockets are stale files.
    #[default]
    Stopped,
    /// The kubelet dereferenced nil, or has a defect of its own; its sockets are stale files. The
    /// text says which.
    Panicked(String),
}

/// Status of one extended resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceStatus {
    /// Number of devices, healthy and unhealthy.
    pub capacity: usize,
    /// Number of healthy devices, used ones too.
    pub allocatable: usize,
    /// The last list, by id.
    pub devices: BTreeMap<String, Device>,
    /// Ids that the device manager regards as taken.
    pub in_use: DeviceIds,
}

/// State of a plugin in the device manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Registration {
    /// Calls go to this socket.
    Connected {
        /// The plugin's socket.
        endpoint: PathBuf,
        /// The plugin's answer to `GetDevicePluginOptions`.
        options: PluginOptions,
    },
    /// The plugin was lost, or has not registered since the kubelet started.
    Stopped {
        /// The former socket, if it is known.
        endpoint: Option<PathBuf>,
    },
}

/// A plugin's answer to `GetDevicePluginOptions`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PluginOptions {
    /// The plugin wants `PreStartContainer`.
    pub pre_start_required: bool,
    /// The plugin wants `GetPreferredAllocation`.
    pub get_preferred_allocation_available: bool,
}

/// Status of one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodStatus {
    /// Name of the pod.
    pub name: String,
    /// Namespace of the pod.
    pub namespace: String,
    /// Phase of the pod.
    pub phase: PodPhase,
    /// Containers by name, init containers too.
    pub containers: BTreeMap<String, ContainerStatus>,
}

/// Phase of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodPhase {
    /// The pod is bound; its admission is under way.
    Pending,
    /// The pod is admitted.
    Admitted,
    /// All containers ended with success.
    Succeeded,
    /// The pod was rejected, or a container failed.
    Failed {
        /// Short reason, such as `UnexpectedAdmissionError`.
        reason: String,
        /// Message of the pod's status.
        message: String,
    },
}

/// Status of one container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerStatus {
    /// True while the container runs.
    pub running: bool,
    /// Held device ids by resource and NUMA node (-1 for none).
    pub devices: BTreeMap<String, BTreeMap<i64, Vec<String>>>,
    /// `allocatedResourcesStatus`: health by resource and id. App containers only.
    pub health: BTreeMap<String, BTreeMap<String, Health>>,
    /// `allocatedResourcesStatus` of claims: by `claim:<name>` or `claim:<name>/<request>`. App
    /// containers only.
    pub claim_health: BTreeMap<String, Vec<ClaimDeviceHealth>>,
}

/// Health of a held device, as in the pod's status. A device that is no longer listed keeps
/// `Healthy`, and so does a device whose plugin is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// `Healthy`.
    Healthy,
    /// Any other word of the plugin.
    Unhealthy,
}

// === impl NodeStatus ===

impl NodeStatus {
    /// Snapshot of a running kubelet.
    pub(crate) fn of(manager: &Manager, dra: &Dra) -> Self {
        let resources = manager
            .counts()
            .into_iter()
            .map(|(resource, counts)| {
                let status = ResourceStatus::of(manager, &resource, counts);
                (resource, status)
            })
            .collect();
        let registrations = manager
            .endpoints
            .iter()
            .map(|(resource, endpoint)| (resource.clone(), Registration::of(endpoint)))
            .collect();
        let pods = manager
            .pods
            .iter()
            .map(|(uid, record)| (uid.clone(), PodStatus::of((manager, dra), record)))
            .collect();
        let (drivers, claims) = (dra.driver_statuses(), dra.claim_statuses());
        Self { kubelet: Condition::Running, resources, registrations, pods, drivers, claims }
    }

    /// Capacity and allocatable of a resource, if the node has the resource.
    pub fn counts(&self, resource: &str) -> Option<(usize, usize)> {
        self.resources.get(resource).map(|status| (status.capacity, status.allocatable))
    }
}

impl ResourceStatus {
    fn of(manager: &Manager, resource: &str, (capacity, allocatable): (usize, usize)) -> Self {
        let devices = manager.devices.get(resource).cloned().unwrap_or_default();
        let in_use = manager.allocated.get(resource).cloned().unwrap_or_default();
        Self { capacity, allocatable, devices, in_use }
    }
}

impl Registration {
    fn of(endpoint: &Endpoint) -> Self {
        match (&endpoint.socket, endpoint.options, endpoint.stopped_at) {
            (Some(socket), Some(options), None) => {
                Self::Connected { endpoint: socket.clone(), options }
            }
            (socket, _, _) => Self::Stopped { endpoint: socket.clone() },
        }
    }
}

impl PodStatus {
    fn of((manager, dra): (&Manager, &Dra), record: &PodRecord) -> Self {
        let apps: BTreeSet<&str> =
            record.pod.containers.iter().map(|container| container.name.as_str()).collect();
        let containers = record
            .pod
            .in_admission_order()
            .map(|container| {
                let mut status = ContainerStatus::of(manager, record, &container.name);
                if apps.contains(container.name.as_str()) {
                    status.claim_health = dra.health_of(&record.pod, &container.name);
                } else {
                    status.health.clear();
                }
                (container.name.clone(), status)
            })
            .collect();
        Self {
            name: record.pod.name.clone(),
            namespace: record.pod.namespace.clone(),
            phase: record.phase.clone(),
            containers,
        }
    }

    /// True if the pod was admitted and has not ended.
    pub fn is_admitted(&self) -> bool {
        self.phase == PodPhase::Admitted
    }
}

impl ContainerStatus {
    fn of(manager: &Manager, record: &PodRecord, container: &str) -> Self {
        let mut status = Self { running: record.running.contains(container), ..Self::default() };
        let holdings = manager.holdings.container(&record.pod.uid, container);
        for (resource, held) in holdings.into_iter().flatten() {
            let listed = manager.devices.get(resource);
            let health = |id: &String| {
                let device = listed.and_then(|listed| listed.get(id));
                if device.is_none_or(Device::is_healthy) {
                    Health::Healthy
                } else {
                    Health::Unhealthy
                }
            };
            let healths = held.ids().into_iter().map(|id| (id.clone(), health(&id))).collect();
            status.health.insert(resource.clone(), healths);
            status.devices.insert(resource.clone(), held.by_numa.clone());
        }
        status
    }
}
