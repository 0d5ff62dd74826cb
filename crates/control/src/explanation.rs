//! Explanation of a pod's placement: the reason why each unsuitable node cannot serve it, and the ranks of the others.

use std::{collections::BTreeMap, fmt};

use serde::{Serialize, Serializer};
use windlass_sched::request::ShareMemory;

use crate::{
    facts::{GpuRequest, PodFacts},
    index::{Index, Refusal},
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

/// Maximum number of nodes whose rank is explained.
const MAX_EXPLAINED: usize = 10;
/// Maximum number of remedies of an explanation.
const MAX_REMEDIES: usize = 5;

// === impl Explanation ===

impl Explanation {
    /// Explains a pod on all nodes of the view.
    pub fn of(index: &mut Index, pod: &PodFacts) -> Self {
        let names = index.node_names();
        let mut by_reason: BTreeMap<String, RefusedNodes> = BTreeMap::new();
        let mut suitable = Vec::new();
        let outcomes = index.filter(pod, &names);
        let claim_check = index.claim_check(pod);
        for (name, outcome) in outcomes {
            let outcome = outcome.map_err(|refusal| refusal.to_string());
            let Err(reason) = outcome.and_then(|()| claim_check(name)) else {
                suitable.push(name.to_owned());
                continue;
            };
            let entry = by_reason.entry(reason.clone());
            let entry =
                entry.or_insert(RefusedNodes { reason, nodes: 0, example: name.to_owned() });
            entry.nodes += 1;
        }
        drop(claim_check);
        let mut refused: Vec<_> = by_reason.into_values().collect();
        refused.sort_by(|a, b| b.nodes.cmp(&a.nodes).then_with(|| a.reason.cmp(&b.reason)));
        let mut fitting = Vec::new();
        let ranked = index.rank(pod, &suitable, suitable.len());
        for (position, node) in ranked.into_iter().enumerate() {
            let is_explained = position < MAX_EXPLAINED;
            let rank = is_explained.then(|| index.explain(pod, node)).flatten();
            fitting.push(FittingNode { node: node.to_owned(), rank });
        }
        // A remedy is one pod. Deleting it does not make room for a gang.
        let needs_remedies = fitting.is_empty() && pod.gang.is_none();
        let remedies = if needs_remedies { remedies(index, pod, &names) } else { Vec::new() };
        Self {
            pod: pod.namespaced_name(),
            wants: request_text(pod),
            node: pod.node.clone(),
            fitting,
            refused,
            remedies,
            is_gang_member: pod.gang.is_some(),
        }
    }
}

/// The reasons why named nodes cannot serve the pod, one per such node. Claims are not checked. The caller passes few
/// nodes per call.
pub(crate) fn refusal_reasons(index: &mut Index, pod: &PodFacts, names: &[String]) -> Vec<String> {
    let outcomes = index.filter(pod, names).into_iter();
    outcomes.filter_map(|(_, outcome)| Some(outcome.err()?.to_string())).collect()
}

// === impl Remedy ===

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} can serve it once pod {} is gone", self.node, self.pod)
    }
}

impl Serialize for Remedy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The pod's request as text.
pub(crate) fn request_text(pod: &PodFacts) -> String {
    let gpus = match &pod.resources.gpus {
        Err(error) => error.to_string(),
        Ok(GpuRequest::None) => "no GPU".to_owned(),
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
    let gang = match &pod.gang {
        Some(Ok(gang)) => format!(", with gang {} of {}", gang.name, gang.size),
        Some(Err(_)) | None => String::new(),
    };
    format!("{gpus}, {cpu} CPU, {memory} MiB of memory{gang}")
}

/// Single pods whose deletion would make room for the pod, those with the fewest GPUs first.
fn remedies(index: &mut Index, pod: &PodFacts, names: &[String]) -> Vec<Remedy> {
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
