//! Checks of nodes and their GPUs: number, failures, invalid annotations, conflicts.

use windlass_core::finding::Finding;

use crate::index::{Index, NodeSnapshot};

const AREA: &str = "devices and pods";

pub(super) fn check(index: &mut Index) -> Vec<Finding> {
    let nodes = index.node_snapshots();
    let mut findings = vec![check_gpu_count(&nodes)];
    for node in &nodes {
        let subject = format!("node {}", node.facts.name);
        let errors = node.facts.annotation_errors.iter();
        findings.extend(errors.map(|error| {
            Finding::warning(AREA, subject.clone(), error.clone()).with_remedy(
                "its agent and the cluster half are of different versions: update both",
            )
        }));
        let failed_gpus = node.facts.gpus.iter().filter(|gpu| gpu.has_failed);
        let obstacles = failed_gpus.filter_map(|gpu| Some((gpu, gpu.obstacle.as_ref()?)));
        findings.extend(obstacles.map(|(gpu, obstacle)| {
            let id = gpu.id.as_ref().map_or("a GPU", |id| id.as_str());
            Finding::warning(AREA, subject.clone(), format!("{id}: {obstacle}"))
                .with_remedy("`windlass doctor` on the node has the remedy")
        }));
        findings.extend(check_conflicts(node));
    }
    findings
}

/// Finding about pods and claims that hold more GPUs than the node has. A node that publishes no GPU has lost its
/// agent; its pods keep their GPUs.
fn check_conflicts(node: &NodeSnapshot<'_>) -> Option<Finding> {
    let holders: Vec<_> = node.conflicts.iter().map(|it| it.holder.as_str()).collect();
    if holders.is_empty() {
        return None;
    }
    let (subject, holders) = (format!("node {}", node.facts.name), holders.join(", "));
    Some(if node.facts.gpus.is_empty() {
        Finding::warning(AREA, subject, format!("publishes no GPU, but GPUs are held: {holders}"))
            .with_remedy("its agent does not run: see the agent's pod; the holders keep their GPUs")
    } else {
        Finding::problem(AREA, subject, format!("more GPUs are held than it has: {holders}"))
            .with_remedy(
                "a GPU is gone, or another scheduler placed them on held GPUs: delete these pods",
            )
    })
}

fn check_gpu_count(nodes: &[NodeSnapshot<'_>]) -> Finding {
    let gpu_nodes: Vec<_> = nodes.iter().filter(|node| !node.facts.gpus.is_empty()).collect();
    let gpus: usize = gpu_nodes.iter().map(|node| node.facts.gpus.len()).sum();
    if gpus == 0 {
        let detail = "no node publishes a GPU";
        return Finding::skipped(AREA, "GPUs", detail)
            .with_remedy("agents publish them with `labels: {devices: true}`, or for claims");
    }
    Finding::ok(AREA, "GPUs", format!("{gpus} in all, nodes with GPUs: {}", gpu_nodes.len()))
}
