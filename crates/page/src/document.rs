//! The document that the page and `windlass top` read. An absent field is unknown or does not apply.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::revision::Revision;

/// Nodes with their devices: all nodes, or the changed ones.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Document {
    /// Revision of this state, for the next request.
    pub revision: Revision,
    /// True for a complete document. Otherwise absent nodes and lists are unchanged, and the history has only new
    /// events.
    pub complete: bool,
    /// Program that created the document.
    pub source: Source,
    /// True if a node's machine is simulated.
    pub simulated: bool,
    /// Version of Windlass.
    pub version: String,
    /// Time of this state.
    pub time: Timestamp,
    /// Totals over all nodes.
    pub summary: Summary,
    /// Nodes by name.
    pub nodes: Vec<NodeView>,
    /// Names of removed nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gone: Vec<String>,
    /// Pods without a node, the oldest first; only the first ones are explained. Absent if unchanged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pending: Option<Vec<PendingPod>>,
    /// Events, the newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<Event>,
}

/// Program that creates a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Source {
    /// The cluster half, which sees all nodes.
    Cluster,
    /// The agent of one node.
    Node,
}

/// Totals over all nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Summary {
    /// Number of whole GPUs.
    pub gpus: usize,
    /// Number of healthy GPUs without a holder.
    pub free_gpus: usize,
    /// Healthy GPUs and parts of GPUs without a holder, in GPUs.
    pub idle_gpus: f64,
    /// Expected part of the idle GPUs that a typical pod cannot use. The agent of a node does not provide it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fragmented_gpus: Option<f64>,
}

/// A node with its devices.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeView {
    /// Name of the node.
    pub name: String,
    /// True if an agent of Windlass publishes the devices.
    pub agent: bool,
    /// True if the node's machine is simulated.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub simulated: bool,
    /// Healthy GPUs without a holder.
    pub free_gpus: usize,
    /// Healthy GPUs and parts of GPUs without a holder, in GPUs.
    pub idle_gpus: f64,
    /// Expected part of the idle GPUs that a typical pod cannot use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fragmented_gpus: Option<f64>,
    /// Processor time that pods can still request, in cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_free: Option<f64>,
    /// Main memory that pods can still request, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_free_bytes: Option<u64>,
    /// Devices of the node. A position is an index into this list.
    pub devices: Vec<DeviceView>,
    /// Connections between the devices.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<LinkView>,
}

/// A device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceView {
    /// Stable id; on a node without an agent, the position.
    pub id: String,
    /// Index among devices of the same kind.
    pub index: usize,
    /// Kind: `gpu`, `nic`, `fpga`, …
    pub kind: String,
    /// Product name; empty if unknown.
    pub product: String,
    /// Health.
    pub health: Health,
    /// Reason why the device is not healthy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Remedy for the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    /// Resource under which the device is offered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// Part without a holder, from 0 to 1.
    pub idle: f64,
    /// Enforcement of the limits of shares.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enforcement: Option<String>,
    /// Size of the memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Memory in use, as measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_used_bytes: Option<u64>,
    /// Fraction of time in which the device computed, from 0 to 1, as measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub utilization: Option<f64>,
    /// Temperature, as measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature_celsius: Option<u32>,
    /// Power draw, as measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_watts: Option<f64>,
    /// NUMA node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<i64>,
    /// PCI address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pci_address: Option<String>,
    /// Id of the whole device, for a partition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// True if the device is partitioned. Its partitions are separate devices.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_cut: bool,
    /// Pods and claims that hold the device, or a share of it.
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
    /// The health is unknown, or a state that this version does not have.
    #[serde(other)]
    Unknown,
}

/// A pod or a claim that holds a device. Without amounts it holds the whole device.
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
    /// Share of the memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Share of the compute, from 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compute: Option<f64>,
    /// Memory in use, as measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_used_bytes: Option<u64>,
    /// True if the holder uses more than its share.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub over_limit: bool,
}

/// A connection between two devices of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkView {
    /// Position of one device.
    pub a: usize,
    /// Position of the other device.
    pub b: usize,
    /// Kind, as `nvidia-smi topo` names it: `NV18`, `PIX`, `SYS`, …
    pub kind: String,
}

/// A pod without a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PendingPod {
    /// The pod, as `namespace/name`.
    pub pod: String,
    /// Time of the pod's creation.
    pub since: Timestamp,
    /// Request of the pod, as text; empty if the pod is not explained.
    pub request: String,
    /// Reasons against nodes, the most frequent first. Empty if the pod fits a node and waits for its scheduler; absent
    /// if the pod is not explained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasons: Option<Vec<RefusedNodes>>,
    /// A change after which the pod would fit.
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
    /// Time at which the server observed the change.
    pub time: Timestamp,
    /// The node.
    pub node: String,
    /// Id of the device; absent if the whole node appeared or was removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// The pod or claim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// Kind of the event.
    pub kind: EventKind,
    /// Details of the event, as text.
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
    /// A pod or a claim released a device.
    Ended,
    /// A device or a node appeared.
    Appeared,
    /// A device or a node was removed.
    Gone,
}

// === impl Summary ===

impl Summary {
    /// Computes the totals over these nodes.
    pub(crate) fn of<'a>(nodes: impl Iterator<Item = &'a NodeView>) -> Self {
        let mut totals = Self::default();
        for node in nodes {
            totals.gpus +=
                node.devices.iter().filter(|it| it.kind == "gpu" && it.parent.is_none()).count();
            totals.free_gpus += node.free_gpus;
            totals.idle_gpus += node.idle_gpus;
            if let Some(fragmented) = node.fragmented_gpus {
                *totals.fragmented_gpus.get_or_insert(0.0) += fragmented;
            }
        }
        totals
    }
}
