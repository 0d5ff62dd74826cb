//! A device in a plugin's list, and sets of device ids.

use std::collections::BTreeSet;

use windlass_kubelet_api::deviceplugin::{self as wire, HEALTHY};

/// Device ids of one resource.
pub type DeviceIds = BTreeSet<String>;

/// Group of the devices without a NUMA node, where devices are grouped by the number of their node
/// (`nodeWithoutTopology`).
pub(crate) const NO_NODE: i64 = -1;

/// One entry of a `ListAndWatch` answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Device id of the plugin.
    pub id: String,
    /// Health, as the plugin wrote it. Only the exact word `Healthy` makes the device allocatable.
    pub health: String,
    /// NUMA nodes; `None` if the plugin sent no topology. An empty list is a topology without nodes,
    /// which hides the device from `GetAllocatableResources`.
    pub numa_nodes: Option<Vec<i64>>,
}

// === impl Device ===

impl Device {
    /// Converts a protobuf message. The kubelet validates no field.
    pub(crate) fn from_proto(device: wire::Device) -> Self {
        let numa_nodes =
            device.topology.map(|topology| topology.nodes.iter().map(|node| node.id).collect());
        Self { id: device.id, health: device.health, numa_nodes }
    }

    /// True if the device may be allocated.
    pub fn is_healthy(&self) -> bool {
        self.health == HEALTHY
    }

    /// NUMA nodes; empty without a topology.
    pub fn nodes(&self) -> &[i64] {
        self.numa_nodes.as_deref().unwrap_or_default()
    }

    /// Groups of the device: its NUMA nodes, or [`NO_NODE`] for a device without nodes.
    pub(crate) fn grouping_nodes(&self) -> &[i64] {
        let nodes = self.nodes();
        if nodes.is_empty() { &[NO_NODE] } else { nodes }
    }
}
