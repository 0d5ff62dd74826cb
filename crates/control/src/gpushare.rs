//! Protocol of gpushare: the annotations that its device plugin waits for, and its `inspect` document.
//!
//! Names and meaning are those of Aliyun's gpushare-scheduler-extender (c0b6141).

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;
use windlass_sched::gpu::GpuState;

use crate::{
    facts::{GpuFacts, GpuRequest},
    index::{Index, NodeSnapshot},
};

/// Prefix of gpushare's annotation keys.
pub(crate) const PREFIX: &str = "ALIYUN_COM_GPU_MEM_";

/// MiB per unit of gpushare.
const MIB_PER_UNIT: u32 = 1024;

/// Annotations of a pod with a chosen GPU: the GPU's index, its memory, and the pod's share of it.
pub(crate) fn annotations(
    index: usize,
    gpu: &GpuFacts,
    request: GpuRequest,
    now: Timestamp,
) -> BTreeMap<String, String> {
    let memory_mib = request.share_of(gpu.memory_mib).map_or(0, |(_, mib)| mib);
    let pair = |key: &str, value: String| (format!("{PREFIX}{key}"), value);
    [
        pair("IDX", index.to_string()),
        pair("DEV", (gpu.memory_mib / MIB_PER_UNIT).to_string()),
        pair("POD", (memory_mib / MIB_PER_UNIT).to_string()),
        pair("ASSIGNED", "false".to_owned()),
        pair("ASSUME_TIME", now.as_nanosecond().to_string()),
    ]
    .into()
}

/// The document of `inspect`, which `kubectl-inspect-gpushare` reads.
#[derive(Debug, Serialize)]
pub(crate) struct Inspection {
    nodes: Vec<InspectedNode>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct InspectedNode {
    name: String,
    #[serde(rename = "totalGPU")]
    total: u32,
    #[serde(rename = "usedGPU")]
    used: u32,
    devs: Vec<InspectedGpu>,
}

#[derive(Debug, Serialize)]
struct InspectedGpu {
    id: usize,
    #[serde(rename = "totalGPU")]
    total: u32,
    #[serde(rename = "usedGPU")]
    used: u32,
    pods: Vec<InspectedPod>,
}

#[derive(Debug, Serialize)]
struct InspectedPod {
    name: String,
    namespace: String,
    #[serde(rename = "usedGPU")]
    used: u32,
}

// === impl Inspection ===

impl Inspection {
    /// All nodes with GPUs, or only the named one.
    pub(crate) fn of(index: &mut Index, name: Option<&str>) -> Self {
        let nodes = index.node_snapshots();
        let nodes = nodes.iter().filter(|node| !node.facts.gpus.is_empty());
        let nodes = nodes.filter(|node| name.is_none_or(|name| node.facts.name == name));
        Self { nodes: nodes.map(InspectedNode::of).collect() }
    }
}

// === impl InspectedNode ===

impl InspectedNode {
    fn of(node: &NodeSnapshot<'_>) -> Self {
        let devs: Vec<_> =
            (0..node.facts.gpus.len()).map(|id| InspectedGpu::of(node, id)).collect();
        Self {
            name: node.facts.name.clone(),
            total: devs.iter().map(|gpu| gpu.total).sum(),
            used: devs.iter().map(|gpu| gpu.used).sum(),
            devs,
        }
    }
}

// === impl InspectedGpu ===

impl InspectedGpu {
    fn of(node: &NodeSnapshot<'_>, id: usize) -> Self {
        let gpu = &node.state.gpus[id];
        let free_mib = match gpu.state {
            GpuState::Shared { free_mib, .. } => free_mib,
            GpuState::Whole | GpuState::Partitioned { .. } => 0,
        };
        let holders = node.holders.iter().filter(|holder| holder.part.gpus.contains(id));
        let pod = |holder: &crate::index::Holder<'_>| InspectedPod {
            name: holder.pod.name.clone(),
            namespace: holder.pod.namespace.clone(),
            used: {
                let request =
                    holder.pod.resources.gpus.as_ref().copied().unwrap_or(GpuRequest::None);
                request.share_of(gpu.memory_mib).map_or(gpu.memory_mib, |(_, mib)| mib)
                    / MIB_PER_UNIT
            },
        };
        Self {
            id,
            total: gpu.memory_mib / MIB_PER_UNIT,
            used: (gpu.memory_mib - free_mib) / MIB_PER_UNIT,
            pods: holders.map(pod).collect(),
        }
    }
}
