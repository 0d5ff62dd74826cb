//! Events of the cluster demo.

use std::collections::BTreeMap;

use serde::Serialize;
use windlass_control::explanation::Explanation;
use windlass_core::device::DeviceId;

use super::policy_state::Figures;
use crate::demo::event::ResolvedGrant;

/// Event. Times are milliseconds since the step began.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub(super) enum ClusterEvent {
    /// The agent has published the GPUs of its node.
    AgentJoined { node: String, gpus: usize, took_ms: f64 },
    /// Pods are placed on the agent's node.
    OnRealNode { node: String },
    /// A pod of the agent's node runs.
    PodRuns(AgentPod),
    /// The agent's node has no room for a pod, which is deleted.
    NoRoom { pod: String },
    /// Pods begin to arrive.
    Arriving { pods: usize, gpus: usize, nodes: usize, asked_percent: u64 },
    /// Statistics at the time when pods have requested this percentage of all GPUs.
    Load { asked_percent: u64, ours: Figures, stock: Figures },
    /// Allocated eighths of each node's GPUs, in the order of the nodes.
    Drawn { asked_percent: u64, ours: Vec<u32>, stock: Vec<u32> },
    /// The extender was stopped, and another one has read the cluster and bound the next pod.
    ExtenderReplaced { took_ms: f64 },
    /// A pod is pending, with the reasons.
    Pending { explanation: Explanation },
    /// The pod that the explanation named was deleted, and the pending pod was placed.
    RemedyHelped { pod: String, node: String, gone: String, took_ms: f64 },
    /// All steps are done.
    Finished(Summary),
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AgentPod {
    /// `namespace/name`.
    pub(super) pod: String,
    /// GPU resource limits.
    pub(super) asks: BTreeMap<&'static str, String>,
    /// GPUs that the extender chose.
    pub(super) gpus: Vec<DeviceId>,
    pub(super) container: ResolvedGrant,
    pub(super) took_ms: f64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Summary {
    /// Pods that were bound.
    pub(super) pods: usize,
    /// Quantiles of the time from a pod's creation to its binding.
    pub(super) cycle_p50_ms: f64,
    pub(super) cycle_p99_ms: f64,
    /// Pods of the agent's node whose containers have the GPUs that the extender chose.
    pub(super) as_decided: usize,
    /// Pods of that node with other GPUs.
    pub(super) elsewhere: usize,
    pub(super) took_ms: f64,
}
