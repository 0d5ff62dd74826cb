//! The device manager's state and its transitions. Pure: no files, no sockets, no clock.
//!
//! Each method is one of the real manager's critical sections. So the same events can come between
//! two of them as there: a list, or a garbage collection during `GetPreferredAllocation`.

mod allocation;
mod choice;
mod endpoint;
mod hints;
mod holding;
mod listing;
mod memory;
mod pods;
mod refusal;
mod reuse;

use std::collections::BTreeMap;

pub(crate) use allocation::Answer;
pub(crate) use choice::{Choice, Request, Undecided};
pub(crate) use endpoint::{Client, Clients, Endpoint};
pub(crate) use hints::{Alignment, saturating};
pub(crate) use holding::{Held, Holdings};
pub(crate) use pods::{Insufficient, PodRecord};
pub(crate) use refusal::{Refusal, Vanished};

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
    /// The last list of each resource, which outlives the plugin.
    pub(crate) devices: BTreeMap<String, BTreeMap<String, Device>>,
    /// Healthy ids. A key in this map makes a resource known.
    pub(crate) healthy: BTreeMap<String, DeviceIds>,
    /// Unhealthy ids.
    pub(crate) unhealthy: BTreeMap<String, DeviceIds>,
    /// Capacity of resources that only the node's status still has; all of it is allocatable. A
    /// plugin's long absence makes it 0; the loss of a checkpoint keeps the former capacity.
    pub(crate) left_over: BTreeMap<String, usize>,
    /// The plugin to call for each resource.
    pub(crate) endpoints: BTreeMap<String, Endpoint>,
    /// Plugins that are connected or connecting.
    pub(crate) clients: Clients,
    /// Ids in use, as the real manager's `allocatedDevices`. A choice adds its ids before
    /// `holdings` has them; a garbage collection recomputes the ids from `holdings`.
    pub(crate) allocated: BTreeMap<String, DeviceIds>,
    /// Devices of each container.
    pub(crate) holdings: Holdings,
    /// Devices of finished init containers, of one pod at a time.
    pub(crate) reusable: reuse::Reusable,
    /// The topology manager's decision by pod and container.
    pub(crate) affinities: BTreeMap<(String, String), NumaMask>,
    /// All pods bound to the node, by UID.
    pub(crate) pods: BTreeMap<String, PodRecord>,
    /// True once the first list of pods was processed.
    pub(crate) sources_ready: bool,
}

#[cfg(test)]
pub(crate) mod tests {
    //! Builders of states for the tests of this folder.

    use super::*;
    use crate::{grant::Grant, pod::Pod};

    pub(crate) const GPU: &str = "example.com/gpu";

    pub(crate) fn ids(names: &str) -> DeviceIds {
        names.split_whitespace().map(str::to_owned).collect()
    }

    /// A healthy device; an empty list means no topology.
    pub(crate) fn device(id: &str, nodes: &[i64]) -> Device {
        let numa_nodes = (!nodes.is_empty()).then(|| nodes.to_vec());
        Device { id: id.to_owned(), health: "Healthy".to_owned(), numa_nodes }
    }

    /// A manager with these listed devices on a machine of two nodes, sources ready.
    pub(crate) fn manager(devices: Vec<Device>) -> Manager {
        let mut manager =
            Manager { numa_nodes: vec![0, 1], sources_ready: true, ..Manager::default() };
        manager.list(GPU, devices);
        manager
    }

    /// Gives devices to a container of an active pod.
    pub(crate) fn hold(manager: &mut Manager, pod: &str, container: &str, names: &str) {
        if !manager.pods.contains_key(pod) {
            let record = Pod { uid: pod.to_owned(), ..Pod::new(pod) };
            manager.add_pod(record);
        }
        let request = request(pod, container, ids(names).len());
        let held = Held::new(
            BTreeMap::from([(-1, ids(names).into_iter().collect())]),
            Vec::new(),
            Grant::default(),
        );
        manager.holdings.insert(&request, held);
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
