//! A device as its plugin lists it, and sets of device ids.

use std::collections::BTreeSet;

use windlass_kubelet_api::deviceplugin::{self as wire, HEALTHY};

/// Device ids of one resource.
pub type DeviceIds = BTreeSet<String>;

/// Key "no NUMA node" where devices are sorted by node (`nodeWithoutTopology`).
pub(crate) const NO_NODE: i64 = -1;

/// One entry of a `ListAndWatch` answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Device id of the plugin.
    pub id: String,
    /// The plugin's word. Only the exact word `Healthy` makes the device allocatable.
    pub health: String,
    /// NUMA nodes. `None` means that the plugin sent no topology. A topology without nodes differs:
    /// it hides the device from `GetAllocatableResources`.
    pub numa_nodes: Option<Vec<i64>>,
}

// === impl Device ===

impl Device {
    /// Converts the device from the wire; the kubelet validates no field.
    pub(crate) fn from_proto(device: wire::Device) -> Self {
        let numa_nodes =
            device.topology.map(|topology| topology.nodes.iter().map(|node| node.id).collect());
        Self { id: device.id, health: device.health, numa_nodes }
    }

    /// True if the device may be allocated.
    pub fn is_healthy(&self) -> bool {
        self.health == HEALTHY
    }

    /// NUMA nodes, none without a topology.
    pub fn nodes(&self) -> &[i64] {
        self.numa_nodes.as_deref().unwrap_or_default()
    }

    /// NUMA nodes under which the device is sorted, [`NO_NODE`] for a device without any.
    pub(crate) fn sorted_under(&self) -> &[i64] {
        let nodes = self.nodes();
        if nodes.is_empty() { &[NO_NODE] } else { nodes }
    }
}
