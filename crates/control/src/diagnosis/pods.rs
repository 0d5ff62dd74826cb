//! Nodes that describe their devices wrongly, and pods that wait for devices.

use windlass_core::finding::Finding;

use crate::{
    explanation::{Explanation, Remedy},
    index::Index,
    objects::Objects,
};

const AREA: &str = "devices and pods";
/// Waiting pods that are explained, the oldest ones.
const MAX_EXPLAINED: usize = 20;

pub(super) fn check(objects: &Objects) -> Vec<Finding> {
    let mut index = objects.to_index();
    let mut findings = vec![devices(&mut index)];
    for node in index.inspect() {
        let subject = format!("node {}", node.facts.name);
        let mistakes = node.facts.mistakes.iter();
        findings.extend(mistakes.map(|mistake| {
            Finding::warning(AREA, subject.clone(), mistake.clone())
                .remedy("its agent and the cluster half are of different versions: update both")
        }));
        let failed = node.facts.gpus.iter().filter(|gpu| gpu.has_failed);
        let obstacles = failed.filter_map(|gpu| Some((gpu, gpu.obstacle.as_ref()?)));
        findings.extend(obstacles.map(|(gpu, obstacle)| {
            let id = gpu.id.as_ref().map_or("a GPU", |id| id.as_str());
            Finding::warning(AREA, subject.clone(), format!("{id}: {obstacle}"))
                .remedy("`windlass doctor` on the node has the remedy")
        }));
    }
    let conflicts = index.conflicts();
    if conflicts > 0 {
        let detail = format!("{conflicts} pods and claims hold more than their node had free");
        findings.push(Finding::problem(AREA, "conflicts", detail).remedy(
            "the extender's log names them; another scheduler has placed pods on the same GPUs",
        ));
    }
    let pending = index.pending();
    for pod in pending.iter().take(MAX_EXPLAINED) {
        findings.push(waiting(&Explanation::of(&mut index, pod)));
    }
    let rest = pending.len().saturating_sub(MAX_EXPLAINED);
    if rest > 0 {
        let detail = format!("{rest} more pods wait for devices");
        findings.push(
            Finding::warning(AREA, "pending pods", detail)
                .remedy("`windlass cluster explain POD` explains each"),
        );
    }
    findings
}

fn devices(index: &mut Index) -> Finding {
    let nodes = index.inspect();
    let with_gpus: Vec<_> = nodes.iter().filter(|node| !node.facts.gpus.is_empty()).collect();
    let gpus: usize = with_gpus.iter().map(|node| node.facts.gpus.len()).sum();
    if gpus == 0 {
        let detail = "no node publishes a GPU";
        return Finding::skipped(AREA, "GPUs", detail)
            .remedy("agents publish them with `labels: {devices: true}`, or for claims");
    }
    Finding::ok(AREA, "GPUs", format!("{gpus} in all, nodes with GPUs: {}", with_gpus.len()))
}

fn waiting(explanation: &Explanation) -> Finding {
    let subject = format!("pod {}", explanation.pod);
    if let Some(fitting) = explanation.fitting.first() {
        let detail = format!("waits, though node {} could serve it", fitting.node);
        return Finding::warning(AREA, subject, detail)
            .remedy("`kubectl describe` of the pod; does a scheduler of its schedulerName run?");
    }
    let reasons: Vec<_> = explanation
        .refused
        .iter()
        .map(|it| format!("{} (nodes: {})", it.reason, it.nodes))
        .collect();
    let detail = format!("waits for {}: {}", explanation.wants, reasons.join("; "));
    let finding = Finding::warning(AREA, subject, detail);
    match explanation.remedies.first().map(Remedy::to_string) {
        Some(remedy) => finding.remedy(remedy),
        None => {
            finding.remedy("the end of no single pod would free enough: add nodes, or ask for less")
        }
    }
}
