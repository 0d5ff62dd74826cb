//! Checks of pending pods that wait for devices.

use windlass_core::finding::Finding;

use crate::{
    explanation::{Explanation, Remedy},
    index::Index,
};

const AREA: &str = "devices and pods";
/// Number of pending pods that are explained, oldest first.
const MAX_EXPLAINED: usize = 20;

pub(super) fn check(index: &mut Index) -> Vec<Finding> {
    let mut findings = Vec::new();
    let pending = index.pending();
    for pod in pending.iter().take(MAX_EXPLAINED) {
        findings.push(explain_pending(&Explanation::of(index, pod)));
    }
    let unexplained = pending.len().saturating_sub(MAX_EXPLAINED);
    if unexplained > 0 {
        let detail = format!("{unexplained} more pods wait for devices");
        findings.push(
            Finding::warning(AREA, "pending pods", detail)
                .with_remedy("`windlass cluster explain POD` explains each"),
        );
    }
    findings
}

fn explain_pending(explanation: &Explanation) -> Finding {
    let subject = format!("pod {}", explanation.pod);
    if let Some(fitting) = explanation.fitting.first() {
        let detail = format!("waits, though node {} could serve it", fitting.node);
        return Finding::warning(AREA, subject, detail).with_remedy(
            "`kubectl describe` of the pod; does a scheduler of its schedulerName run?",
        );
    }
    let finding = Finding::warning(AREA, subject, explanation.pending_reason());
    match explanation.remedies.first().map(Remedy::to_string) {
        Some(remedy) => finding.with_remedy(remedy),
        None if explanation.is_gang_member => finding.with_remedy(
            "all pods of its gang start together: create the missing ones, or wait until all fit side by side",
        ),
        None => {
            finding.with_remedy("deleting one pod would not free enough: add nodes, or request less")
        }
    }
}
