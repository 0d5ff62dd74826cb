//! Explanation of a pod's placement: the reason why each unsuitable node cannot serve it, and the ranks of the others.

use std::{collections::BTreeMap, fmt, mem};

use serde::{Serialize, Serializer};
use tokio::task::yield_now;
use windlass_host::shared::Shared;
use windlass_sched::request::ShareMemory;

use crate::{
    facts::{GpuRequest, PodFacts},
    index::{Index, PodClaims, Refusal},
};

/// Explanation of a pod's placement.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// `namespace/name`.
    pub pod: String,
    /// The pod's request as text, such as `2 GPUs of one node, 4 CPU, 1024 MiB of memory`.
    pub wants: String,
    /// The pod's node, if it has one.
    pub node: Option<String>,
    /// Nodes that can serve the pod, the best first.
    pub fitting: Vec<FittingNode>,
    /// Reasons against the other nodes, the most frequent first.
    pub refused: Vec<RefusedNodes>,
    /// Other pods, each of whose deletion would make room for this pod; those with the fewest GPUs first.
    pub remedies: Vec<Remedy>,
    /// True if the pod belongs to a gang.
    #[serde(skip)]
    pub is_gang_member: bool,
}

/// A pod whose deletion would make room for the explained pod. Serialized as a sentence.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Remedy {
    /// The node that could then serve the explained pod.
    pub node: String,
    /// The pod to delete, as `namespace/name`.
    pub pod: String,
}

/// A node that can serve a pod.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FittingNode {
    /// The node's name.
    pub node: String,
    /// The terms of the node's rank; only for the best nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<String>,
}

/// Nodes that refuse a pod for the same reason.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RefusedNodes {
    /// The reason, as in the pod's event.
    pub reason: String,
    /// Number of nodes.
    pub nodes: usize,
    /// The first of these nodes by name.
    pub example: String,
}

/// The checks of a pod on some nodes.
#[derive(Default)]
struct Outcomes {
    fitting: Vec<String>,
    by_reason: BTreeMap<String, RefusedNodes>,
}

/// Maximum number of nodes whose rank is explained.
const MAX_EXPLAINED: usize = 10;
/// Maximum number of remedies of an explanation.
const MAX_REMEDIES: usize = 5;
/// Maximum number of reasons in a pending pod's sentence.
const MAX_REASONS: usize = 5;
/// Number of nodes per step. A step without claims holds the lock of the index for less than a millisecond.
pub(crate) const STEP_NODES: usize = 200;
/// Number of nodes per step for a pod with claims: each node takes an allocation.
const CLAIM_STEP_NODES: usize = 10;

// === impl Outcomes ===

impl Outcomes {
    /// Checks the pod on further nodes.
    fn check(&mut self, index: &mut Index, pod: &PodFacts, claims: &PodClaims, names: &[String]) {
        for (name, outcome) in index.filter(pod, names) {
            let outcome = outcome.map_err(|refusal| refusal.to_string());
            let Err(reason) = outcome.and_then(|()| index.check_claims(claims, name)) else {
                self.fitting.push(name.to_owned());
                continue;
            };
            let entry = self.by_reason.entry(reason.clone());
            let entry =
                entry.or_insert(RefusedNodes { reason, nodes: 0, example: name.to_owned() });
            entry.nodes += 1;
        }
    }

    /// The reasons, the most frequent first.
    fn refused(self) -> Vec<RefusedNodes> {
        let mut refused: Vec<_> = self.by_reason.into_values().collect();
        refused.sort_by(|a, b| b.nodes.cmp(&a.nodes).then_with(|| a.reason.cmp(&b.reason)));
        refused
    }
}

// === impl Explanation ===

impl Explanation {
    /// Explains a pod on all nodes of the view.
    pub fn of(index: &mut Index, pod: &PodFacts) -> Self {
        let (names, claims) = (index.node_names(), index.pod_claims(pod));
        let mut outcomes = Outcomes::default();
        outcomes.check(index, pod, &claims, &names);
        let suitable = mem::take(&mut outcomes.fitting);
        let mut fitting = Vec::new();
        let ranked = index.rank(pod, &suitable, suitable.len());
        for (position, node) in ranked.into_iter().enumerate() {
            let is_explained = position < MAX_EXPLAINED;
            let rank = is_explained.then(|| index.explain(pod, node)).flatten();
            fitting.push(FittingNode { node: node.to_owned(), rank });
        }
        let remedies = if fitting.is_empty() { remedies(index, pod, &names) } else { Vec::new() };
        Self { fitting, remedies, ..Self::refusals(pod, outcomes.refused()) }
    }

    /// Explains a pod that no node can serve, in steps between which others use the index. `None` as soon as a node
    /// fits. A cluster of more than [`STEP_NODES`] nodes has no remedies.
    pub(crate) async fn of_refusals(
        index: &Shared<Index>,
        pod: &PodFacts,
        claims: &PodClaims,
        names: &[String],
    ) -> Option<Self> {
        let step_size = match pod {
            // A gang is planned over all nodes at once, in one step.
            PodFacts { gang: Some(_), .. } => names.len().max(1),
            PodFacts { claims, .. } if claims.is_empty() => STEP_NODES,
            _ => CLAIM_STEP_NODES,
        };
        let mut outcomes = Outcomes::default();
        for step in names.chunks(step_size) {
            index.with_lock(|index| outcomes.check(index, pod, claims, step));
            if !outcomes.fitting.is_empty() {
                return None;
            }
            yield_now().await;
        }
        let remedies = if names.len() <= STEP_NODES {
            index.with_lock(|index| remedies(index, pod, names))
        } else {
            Vec::new()
        };
        Some(Self { remedies, ..Self::refusals(pod, outcomes.refused()) })
    }

    fn refusals(pod: &PodFacts, refused: Vec<RefusedNodes>) -> Self {
        Self {
            pod: pod.namespaced_name(),
            wants: request_text(pod),
            node: pod.node.clone(),
            fitting: Vec::new(),
            refused,
            remedies: Vec::new(),
            is_gang_member: pod.gang.is_some(),
        }
    }

    /// The pod's request, and the most frequent reasons why no node can serve it.
    pub(crate) fn pending_reason(&self) -> String {
        let first_reasons = self.refused.iter().take(MAX_REASONS);
        let mut reasons: Vec<_> =
            first_reasons.map(|it| format!("{} (nodes: {})", it.reason, it.nodes)).collect();
        match self.refused.len().saturating_sub(MAX_REASONS) {
            0 if reasons.is_empty() => reasons.push("the cluster has no nodes".to_owned()),
            0 => {}
            others => reasons.push(format!("and {others} more reasons")),
        }
        format!("waits for {}: {}", self.wants, reasons.join("; "))
    }
}

// === impl Remedy ===

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} would have room once pod {} is gone", self.node, self.pod)
    }
}

impl Serialize for Remedy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The pod's request as text, without amounts of zero.
pub(crate) fn request_text(pod: &PodFacts) -> String {
    let devices = match &pod.resources.gpus {
        Err(error) => error.to_string(),
        Ok(GpuRequest::None) if pod.claims.is_empty() => "no GPU".to_owned(),
        Ok(GpuRequest::None) => "the devices of its claims".to_owned(),
        Ok(GpuRequest::Whole(1)) => "1 GPU".to_owned(),
        Ok(GpuRequest::Whole(count)) => format!("{count} GPUs of one node"),
        Ok(GpuRequest::Share { count, compute_milli, memory, .. }) => {
            let memory = (*memory != ShareMemory::Mib(0)).then(|| memory.to_string());
            let compute =
                (*compute_milli > 0).then(|| format!("{} % of the compute", compute_milli / 10));
            let parts: Vec<_> = memory.into_iter().chain(compute).collect();
            let gpus = if *count == 1 { "one GPU" } else { &format!("each of {count} GPUs") };
            format!("{} of {gpus}", parts.join(" and "))
        }
    };
    let (cpu, memory) = (f64::from(pod.resources.cpu_milli) / 1000.0, pod.resources.memory_mib);
    let cpu = (cpu > 0.0).then(|| format!("{cpu} CPU"));
    let memory = (memory > 0).then(|| format!("{memory} MiB of memory"));
    let gang = pod.gang.as_ref().and_then(|gang| gang.as_ref().ok());
    let gang = gang.map(|gang| format!("with gang {} of {}", gang.name, gang.size));
    [Some(devices), cpu, memory, gang].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Single pods whose deletion would make room for the pod, those with the fewest GPUs first. None for a gang, which
/// needs more, and for claims, whose devices no deletion of a pod is known to free.
fn remedies(index: &mut Index, pod: &PodFacts, names: &[String]) -> Vec<Remedy> {
    if pod.gang.is_some() || !pod.claims.is_empty() {
        return Vec::new();
    }
    let outcomes = index.filter(pod, names);
    let depends_on_pods =
        |refusal: &Refusal| matches!(refusal, Refusal::Misfit(_) | Refusal::NotAccepted { .. });
    let blocked: Vec<_> = outcomes
        .into_iter()
        .filter(|(_, outcome)| outcome.as_ref().err().is_some_and(depends_on_pods))
        .map(|(name, _)| name.to_owned())
        .collect();
    let mut candidates = Vec::new();
    for name in &blocked {
        for (uid, holder, gpu_count) in index.holders(name) {
            if index.fits_without(pod, name, &[uid]) {
                candidates.push((gpu_count, Remedy { node: name.clone(), pod: holder }));
            }
        }
    }
    candidates.sort();
    candidates.into_iter().take(MAX_REMEDIES).map(|(_, remedy)| remedy).collect()
}
