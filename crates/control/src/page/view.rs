//! Conversion of index nodes and pending pods to the page's document.

use jiff::Timestamp;
use windlass_page::{DeviceView, Health, HolderView, NodeView, PendingPod, RefusedNodes};

use crate::{
    explanation::{Explanation, request_text},
    facts::PodFacts,
    index::{GpuHolder, NodeSnapshot},
};

/// Converts thousandths of a GPU to GPUs.
fn from_milli(milli: u32) -> f64 {
    f64::from(milli) / 1000.0
}

pub(super) fn node(node: &NodeSnapshot<'_>) -> NodeView {
    NodeView {
        name: node.facts.name.clone(),
        agent: node.facts.has_agent,
        simulated: node.facts.simulated,
        free_gpus: node.state.free_gpus().len() as usize,
        idle_gpus: from_milli(node.state.idle_milli()),
        // Rounded: each new pod changes the forecast a little, and would change the document.
        fragmented_gpus: Some((node.fragmentation * 100.0).round() / 100.0),
        cpu_free: Some(from_milli(node.state.cpu_milli.free)),
        memory_free_bytes: Some(bytes(node.state.memory_mib.free)),
        devices: (0..node.facts.gpus.len()).map(|position| device(node, position)).collect(),
        links: Vec::new(),
    }
}

fn device(node: &NodeSnapshot<'_>, position: usize) -> DeviceView {
    let facts = &node.facts.gpus[position];
    let is_usable = facts.obstacle.is_none();
    let idle = node.state.gpus.get(position).map_or(0, windlass_sched::gpu::Gpu::idle_milli);
    DeviceView {
        id: facts.id.as_ref().map_or_else(|| position.to_string(), ToString::to_string),
        index: position,
        kind: "gpu".to_owned(),
        product: facts.model.clone(),
        health: if facts.has_failed { Health::Unhealthy } else { Health::Healthy },
        reason: facts.obstacle.clone(),
        idle: if is_usable { from_milli(idle.into()) } else { 0.0 },
        memory_bytes: (facts.memory_mib > 0).then(|| bytes(facts.memory_mib)),
        holders: node
            .holders_of(position)
            .map(|(holder, share)| holder_view(holder, share))
            .collect(),
        ..DeviceView::default()
    }
}

/// A pod, or a claim. A claim has its pod if exactly one pod uses it.
fn holder_view(holder: GpuHolder<'_>, share: Option<(u16, u32)>) -> HolderView {
    match holder {
        GpuHolder::Pod(pod) => HolderView { pod: Some(pod.namespaced_name()), ..share_view(share) },
        GpuHolder::Claim(claim_part) => {
            let pod = match claim_part.pods.as_slice() {
                [pod] => Some(pod.clone()),
                _ => None,
            };
            HolderView { pod, claim: Some(claim_part.claim.clone()), ..share_view(share) }
        }
    }
}

/// A holder without a name, with its share: compute in thousandths and memory in MiB. Zero amounts are left out.
fn share_view(share: Option<(u16, u32)>) -> HolderView {
    let (compute_milli, memory_mib) = share.unwrap_or_default();
    HolderView {
        memory_bytes: (memory_mib > 0).then(|| bytes(memory_mib)),
        compute: (compute_milli > 0).then(|| from_milli(compute_milli.into())),
        ..HolderView::default()
    }
}

fn bytes(mib: u32) -> u64 {
    u64::from(mib) << 20
}

/// A pending pod without an explanation.
pub(super) fn unexplained(pod: &PodFacts) -> PendingPod {
    PendingPod {
        pod: pod.namespaced_name(),
        since: Timestamp::from_second(pod.created).unwrap_or_default(),
        request: String::new(),
        reasons: None,
        help: None,
    }
}

/// A pending pod. `refusals` is its explanation, if no node can serve it.
pub(super) fn explained(pod: &PodFacts, refusals: Option<Explanation>) -> PendingPod {
    let help = refusals.as_ref().and_then(|it| it.remedies.first()).map(ToString::to_string);
    let reasons = refusals.into_iter().flat_map(|it| it.refused);
    let reasons = reasons.map(|it| RefusedNodes { reason: it.reason, nodes: it.nodes });
    let (request, reasons) = (request_text(pod), Some(reasons.collect()));
    PendingPod { request, reasons, help, ..unexplained(pod) }
}
