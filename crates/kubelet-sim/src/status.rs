//! Snapshot of the node and its kubelet, for callers.

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
    pub kubelet: KubeletState,
    /// Extended resources in the node's status. A resource appears with its first list. After the grace
    /// period of a lost plugin, the resource remains with capacity 0.
    pub resources: BTreeMap<String, ResourceStatus>,
    /// Plugins by resource.
    pub plugins: BTreeMap<String, PluginStatus>,
    /// Pods by UID.
    pub pods: BTreeMap<String, PodStatus>,
    /// Endpoints by DRA driver, in the order of registration.
    pub drivers: BTreeMap<String, Vec<DriverStatus>>,
    /// Claims that pods use, by `namespace/name`.
    pub claims: BTreeMap<String, ClaimStatus>,
}

/// State of the kubelet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum KubeletState {
    /// The kubelet serves.
    Running,
    /// The kubelet is stopped. Its sockets remain as stale files.
    #[default]
    Stopped,
    /// The kubelet panicked: a nil dereference of the real kubelet, an injected crash, or a defect of
    /// the embedded kubelet. Its sockets remain as stale files. The text is the cause.
    Panicked(String),
}

/// Status of one extended resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceStatus {
    /// Number of devices, healthy and unhealthy.
    pub capacity: usize,
    /// Number of healthy devices, including allocated ones.
    pub allocatable: usize,
    /// Devices in the last list, by id.
    pub devices: BTreeMap<String, Device>,
    /// Ids of allocated devices, including those chosen for an admission in progress.
    pub in_use: DeviceIds,
}

/// State of a plugin in the device manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PluginStatus {
    /// The device manager calls this plugin.
    Connected {
        /// The plugin's socket.
        endpoint: PathBuf,
        /// The plugin's answer to `GetDevicePluginOptions`.
        options: PluginOptions,
    },
    /// The plugin disconnected, or has not registered since the kubelet started.
    Stopped {
        /// Socket of the plugin that disconnected; `None` after a kubelet restart.
        endpoint: Option<PathBuf>,
    },
}

/// A plugin's answer to `GetDevicePluginOptions`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PluginOptions {
    /// True if the plugin requires `PreStartContainer` calls.
    pub pre_start_required: bool,
    /// True if the plugin implements `GetPreferredAllocation`.
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
    /// Containers by name, including init containers.
    pub containers: BTreeMap<String, ContainerStatus>,
}

/// Phase of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodPhase {
    /// The pod is bound to the node; its admission is in progress.
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
    pub is_running: bool,
    /// Allocated device ids by resource and NUMA node; -1 for devices without a node.
    pub devices: BTreeMap<String, BTreeMap<i64, Vec<String>>>,
    /// `allocatedResourcesStatus` of plugin resources: health by resource and device id. Empty for init
    /// containers.
    pub health: BTreeMap<String, BTreeMap<String, Health>>,
    /// `allocatedResourcesStatus` of claims: health by `claim:<name>` or `claim:<name>/<request>`. Empty
    /// for init containers.
    pub claim_health: BTreeMap<String, Vec<ClaimDeviceHealth>>,
}

/// Health of an allocated device in the pod's status. A device that its plugin no longer lists is
/// `Healthy`. After the plugin disconnects, the health in its last list stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// `Healthy`.
    Healthy,
    /// The plugin lists the device with any other health.
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
        let plugins = manager
            .endpoints
            .iter()
            .map(|(resource, endpoint)| (resource.clone(), PluginStatus::of(endpoint)))
            .collect();
        let pods = manager
            .pods
            .iter()
            .map(|(uid, record)| (uid.clone(), PodStatus::of((manager, dra), record)))
            .collect();
        let (drivers, claims) = (dra.driver_statuses(), dra.claim_statuses());
        Self { kubelet: KubeletState::Running, resources, plugins, pods, drivers, claims }
    }

    /// `(capacity, allocatable)` of a resource; `None` if the node's status lacks the resource.
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

impl PluginStatus {
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
        let app_containers: BTreeSet<&str> =
            record.pod.containers.iter().map(|container| container.name.as_str()).collect();
        let containers = record
            .pod
            .in_admission_order()
            .map(|container| {
                let mut status = ContainerStatus::of(manager, record, &container.name);
                if app_containers.contains(container.name.as_str()) {
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
        let mut status = Self { is_running: record.running.contains(container), ..Self::default() };
        let holdings = manager.holdings.container(&record.pod.uid, container);
        for (resource, holding) in holdings.into_iter().flatten() {
            let listed = manager.devices.get(resource);
            let health = |id: &String| {
                let device = listed.and_then(|listed| listed.get(id));
                if device.is_none_or(Device::is_healthy) {
                    Health::Healthy
                } else {
                    Health::Unhealthy
                }
            };
            let healths = holding.ids().into_iter().map(|id| (id.clone(), health(&id))).collect();
            status.health.insert(resource.clone(), healths);
            status.devices.insert(resource.clone(), holding.by_numa.clone());
        }
        status
    }
}
