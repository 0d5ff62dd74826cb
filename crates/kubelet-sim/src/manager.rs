//! The device manager's state and its transitions. Pure: no files, no sockets, no clock.
//!
//! Each method is one critical section of the real manager. So the same events can occur between two
//! of them, such as a new list or a garbage collection during `GetPreferredAllocation`.

mod allocation;
mod choice;
mod endpoint;
mod error;
mod hints;
mod holding;
mod listing;
mod persistence;
mod pods;
mod reuse;

use std::collections::BTreeMap;

pub(crate) use allocation::ContainerResponse;
pub(crate) use choice::{Choice, PendingChoice, Request};
pub(crate) use endpoint::{Client, Clients, Endpoint};
pub(crate) use error::{ManagerError, UnlistedDevice};
pub(crate) use hints::{Alignment, device_count};
pub(crate) use holding::{Holding, Holdings};
pub(crate) use pods::{InsufficientResource, PodRecord};

use crate::{
    config::Release,
    device::{Device, DeviceIds},
    topology::{NumaMask, TopologyPolicy},
};

/// State of the device manager.
#[derive(Debug, Default)]
pub(crate) struct Manager {
    /// Release whose rules apply.
    pub(crate) release: Release,
    /// Topology manager policy.
    pub(crate) policy: TopologyPolicy,
    /// NUMA nodes of the machine.
    pub(crate) numa_nodes: Vec<i64>,
    /// The last list of each resource, by resource and id. A list stays after its plugin disconnects.
    pub(crate) devices: BTreeMap<String, BTreeMap<String, Device>>,
    /// Healthy ids by resource. A resource with a key in this map is known.
    pub(crate) healthy: BTreeMap<String, DeviceIds>,
    /// Unhealthy ids by resource.
    pub(crate) unhealthy: BTreeMap<String, DeviceIds>,
    /// Capacity of resources that only the node's status still has, because the device manager does not
    /// know them; all of it is allocatable. It is 0 after the grace period of a lost plugin, and the
    /// former capacity after the loss of the checkpoint.
    pub(crate) status_only_capacities: BTreeMap<String, usize>,
    /// The plugin to call for each resource.
    pub(crate) endpoints: BTreeMap<String, Endpoint>,
    /// Plugins that are connected or connecting.
    pub(crate) clients: Clients,
    /// Ids in use by resource: the real manager's `allocatedDevices`. A choice adds its ids before
    /// `holdings` contains them; a garbage collection recomputes the ids from `holdings`.
    pub(crate) allocated: BTreeMap<String, DeviceIds>,
    /// Allocated devices of each container.
    pub(crate) holdings: Holdings,
    /// Devices of one pod's init containers that its later containers may reuse.
    pub(crate) reusable: reuse::ReusableDevices,
    /// NUMA nodes by pod and container, decided by the topology manager.
    pub(crate) affinities: BTreeMap<(String, String), NumaMask>,
    /// All pods bound to the node, by UID.
    pub(crate) pods: BTreeMap<String, PodRecord>,
    /// True once the kubelet knows all pods of the node.
    pub(crate) sources_ready: bool,
}

#[cfg(test)]
pub(crate) mod tests {
    //! Test builders for the state of the manager.

    use super::*;
    use crate::{grant::RunContainerOptions, pod::Pod};

    pub(crate) const GPU: &str = "example.com/gpu";

    pub(crate) fn ids(names: &str) -> DeviceIds {
        names.split_whitespace().map(str::to_owned).collect()
    }

    /// A healthy device. An empty list of nodes means no topology.
    pub(crate) fn device(id: &str, nodes: &[i64]) -> Device {
        let numa_nodes = (!nodes.is_empty()).then(|| nodes.to_vec());
        Device { id: id.to_owned(), health: "Healthy".to_owned(), numa_nodes }
    }

    /// A manager that knows all pods, on a machine of two nodes with these listed devices.
    pub(crate) fn manager(devices: Vec<Device>) -> Manager {
        let mut manager =
            Manager { numa_nodes: vec![0, 1], sources_ready: true, ..Manager::default() };
        manager.set_devices(GPU, devices);
        manager
    }

    /// Allocates devices to a container of an active pod.
    pub(crate) fn hold(manager: &mut Manager, pod: &str, container: &str, names: &str) {
        if !manager.pods.contains_key(pod) {
            let record = Pod { uid: pod.to_owned(), ..Pod::new(pod) };
            manager.add_pod(record);
        }
        let request = request(pod, container, ids(names).len());
        let holding = Holding::new(
            BTreeMap::from([(-1, ids(names).into_iter().collect())]),
            Vec::new(),
            RunContainerOptions::default(),
        );
        manager.holdings.insert(&request, holding);
        manager.allocated = manager.holdings.in_use();
    }

    pub(crate) fn request(pod: &str, container: &str, size: usize) -> Request {
        Request {
            pod: pod.to_owned(),
            container: container.to_owned(),
            resource: GPU.to_owned(),
            size,
        }
    }
}
