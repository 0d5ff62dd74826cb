//! Events of the cluster demo.

use std::collections::BTreeMap;

use serde::Serialize;
use windlass_control::explanation::Explanation;
use windlass_core::device::DeviceId;

use super::account::Figures;
use crate::demo::event::Gets;

/// Event. Times are milliseconds since the step began.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub(super) enum ClusterEvent {
    /// The agent has published the GPUs of its node.
    AgentJoined { node: String, gpus: usize, took_ms: f64 },
    /// Pods are placed on the agent's node.
    OnRealNode { node: String },
    /// A pod of the agent's node runs.
    PodRuns(RealPod),
    /// The agent's node has no room for a pod, which is deleted.
    NoRoom { pod: String },
    /// Pods begin to come.
    Arriving { pods: usize, gpus: usize, nodes: usize, asked_percent: u64 },
    /// The pods that came have asked for a part of all GPUs.
    Load { asked_percent: u64, ours: Figures, stock: Figures },
    /// Held eighths of each node's GPUs, in the order of the nodes.
    Drawn { asked_percent: u64, ours: Vec<u32>, stock: Vec<u32> },
    /// The extender was told to end, and another one has read the cluster and bound the next pod.
    ExtenderReplaced { took_ms: f64 },
    /// A pod waits, and why.
    Pending { explanation: Explanation },
    /// The pod that the explanation named is gone, and the other one was placed.
    RemedyHelped { pod: String, node: String, gone: String, took_ms: f64 },
    /// All steps are done.
    Finished(Summary),
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RealPod {
    /// `namespace/name`.
    pub(super) pod: String,
    /// Its limits of GPU resources.
    pub(super) asks: BTreeMap<&'static str, String>,
    /// GPUs that the extender decided.
    pub(super) gpus: Vec<DeviceId>,
    pub(super) container: Gets,
    pub(super) took_ms: f64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Summary {
    /// Pods that were bound.
    pub(super) pods: usize,
    /// Times from the pod's creation to its binding.
    pub(super) cycle_p50_ms: f64,
    pub(super) cycle_p99_ms: f64,
    /// Pods of the agent's node whose containers have the GPUs that were decided.
    pub(super) as_decided: usize,
    /// Pods of that node with other GPUs.
    pub(super) elsewhere: usize,
    pub(super) took_ms: f64,
}
