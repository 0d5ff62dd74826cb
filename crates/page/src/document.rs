//! The document that the page and `windlass top` read. An absent field is unknown or does not apply.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::revision::Revision;

/// Nodes with their devices: all of them, or those that changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Document {
    /// Revision of this state, for the next request.
    pub revision: Revision,
    /// True for a complete document. Otherwise absent nodes and lists are unchanged, and the history has only new
    /// events.
    pub complete: bool,
    /// Program that made the document.
    pub source: Source,
    /// True if a node's machine is simulated.
    pub simulated: bool,
    /// Version of Windlass.
    pub version: String,
    /// Time of this state.
    pub time: Timestamp,
    /// Sums over all nodes.
    pub summary: Summary,
    /// Nodes by name.
    pub nodes: Vec<NodeView>,
    /// Names of removed nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gone: Vec<String>,
    /// Pods without a node, the oldest first. Only the first ones are explained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pending: Option<Vec<PendingPod>>,
    /// Events, the newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<Event>,
}

/// Program that makes a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Source {
    /// The cluster half, which sees all nodes.
    Cluster,
    /// The agent of one node.
    Node,
}

/// Sums over all nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Summary {
    /// GPUs.
    pub gpus: usize,
    /// Healthy GPUs without a holder.
    pub free_gpus: usize,
    /// Healthy GPUs and parts of GPUs without a holder, in GPUs.
    pub idle_gpus: f64,
    /// Expected part of the idle GPUs that a typical pod cannot use. The agent of a node does not know it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fragmented_gpus: Option<f64>,
}

/// A node with its devices.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeView {
    /// Its name.
    pub name: String,
    /// True if an agent of Windlass publishes its devices.
    pub agent: bool,
    /// True if its machine is simulated.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub simulated: bool,
    /// Healthy GPUs without a holder.
    pub free_gpus: usize,
    /// Healthy GPUs and parts of GPUs without a holder, in GPUs.
    pub idle_gpus: f64,
    /// Expected part of the idle GPUs that a typical pod cannot use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fragmented_gpus: Option<f64>,
    /// Processor time that pods can still have, in cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_free: Option<f64>,
    /// Main memory that pods can still have, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_free_bytes: Option<u64>,
    /// Its devices, in the order of their positions.
    pub devices: Vec<DeviceView>,
    /// Connections between them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<LinkView>,
}

/// A device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceView {
    /// Its stable id; on a node without an agent, its position.
    pub id: String,
    /// Its index among devices of its kind.
    pub index: usize,
    /// Its kind: `gpu`, `nic`, `fpga`, …
    pub kind: String,
    /// Name of its product; empty if unknown.
    pub product: String,
    /// Its health.
    pub health: Health,
    /// Reason that it is not healthy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Remedy for the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    /// Resource under which it is offered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// Part without a holder, from 0 to 1.
    pub idle: f64,
    /// Enforcement of limits on its shares.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enforcement: Option<String>,
    /// Size of its memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Memory in use, as measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_used_bytes: Option<u64>,
    /// Share of time in which it computed, from 0 to 1, as measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub utilization: Option<f64>,
    /// Temperature, as measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature_celsius: Option<u32>,
    /// Power draw, as measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_watts: Option<f64>,
    /// Its NUMA node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<i64>,
    /// Its PCI address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pci_address: Option<String>,
    /// Id of the device that it is a part of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// True if it is partitioned: its parts are devices of their own.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_cut: bool,
    /// Pods and claims that have it, or a share of it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub holders: Vec<HolderView>,
}

/// Health of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Health {
    /// The device works.
    #[default]
    Healthy,
    /// The device has failed.
    Unhealthy,
    /// The health is not known, or this version does not know its name.
    #[serde(other)]
    Unknown,
}

/// A pod or a claim that has a device. Without amounts it has the whole device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HolderView {
    /// The pod, as `namespace/name`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// The claim, as `namespace/name`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim: Option<String>,
    /// Container of the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// Its share of the memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Its share of the compute, from 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compute: Option<f64>,
    /// Memory in use, as measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_used_bytes: Option<u64>,
    /// True if it uses more than its share.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub over_limit: bool,
}

/// A connection between two devices of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkView {
    /// Position of one device.
    pub a: usize,
    /// Position of the other one.
    pub b: usize,
    /// Its kind in the words of `nvidia-smi topo`: `NV18`, `PIX`, `SYS`, …
    pub kind: String,
}

/// A pod without a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PendingPod {
    /// The pod, as `namespace/name`.
    pub pod: String,
    /// Time of its creation.
    pub since: Timestamp,
    /// Its request in words; empty if it is not explained.
    pub request: String,
    /// Reasons against nodes, the most frequent first. Empty: it fits a node, and waits for its scheduler. Absent: not
    /// explained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasons: Option<Vec<RefusedNodes>>,
    /// A change that would help.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub help: Option<String>,
}

/// Nodes that refuse a pod for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedNodes {
    /// The reason.
    pub reason: String,
    /// Number of nodes.
    pub nodes: usize,
}

/// A change of a device or a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Time at which the change was seen.
    pub time: Timestamp,
    /// The node.
    pub node: String,
    /// Id of the device; absent if the whole node appeared or was removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// The pod or claim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// Its kind.
    pub kind: EventKind,
    /// The event in words.
    pub text: String,
}

/// Kind of an [`Event`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum EventKind {
    /// A device became unhealthy, or the reason changed.
    Fault,
    /// A device became healthy.
    Recovery,
    /// A pod or a claim got a device.
    Placed,
    /// A pod or a claim has released a device.
    Ended,
    /// A device or a node appeared.
    Appeared,
    /// A device or a node was removed.
    Gone,
}

// === impl Summary ===

impl Summary {
    /// Sums over these nodes.
    pub(crate) fn of<'a>(nodes: impl Iterator<Item = &'a NodeView>) -> Self {
        let mut sums = Self::default();
        for node in nodes {
            sums.gpus +=
                node.devices.iter().filter(|it| it.kind == "gpu" && it.parent.is_none()).count();
            sums.free_gpus += node.free_gpus;
            sums.idle_gpus += node.idle_gpus;
            if let Some(fragmented) = node.fragmented_gpus {
                *sums.fragmented_gpus.get_or_insert(0.0) += fragmented;
            }
        }
        sums
    }
}
