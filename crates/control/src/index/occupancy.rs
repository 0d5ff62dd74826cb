//! Occupancy of a node: its free resources, computed from its facts, claims and pods.

use std::{collections::BTreeMap, fmt};

use windlass_sched::{
    gpu::{Gpu, GpuSet, ModelSet},
    node::{Node, Part},
    request::{Gpus, Request},
    view::Catalog,
};

use crate::facts::{NodeFacts, PodFacts};

/// Parts of a node that pods and claims hold.
#[derive(Debug, Default)]
pub(super) struct Occupancy {
    parts: BTreeMap<String, Part>,
    claims: Vec<ClaimPart>,
    conflicts: Vec<Conflict>,
}

/// The GPUs of a node that one result of a claim's allocation holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimPart {
    /// The claim, as `namespace/name`.
    pub claim: String,
    /// The pods for which the claim is reserved, as `namespace/name`.
    pub pods: Vec<String>,
    /// The GPUs of this result, whole or a share.
    pub gpus: Gpus,
    /// The same GPUs as a part of the node.
    pub part: Part,
}

/// A pod or a claim that holds more than its node has free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The pod or claim.
    pub holder: String,
    gpus: Gpus,
}

/// Places the claims and pods on an empty node, and returns the node's state.
///
/// Claims come first: their allocations name devices. Pods with known GPUs come before pods of which only the number of
/// GPUs is known; in each group the oldest comes first. A pod that another scheduler bound gets free GPUs. If too few
/// are free, it gets those that are free, and is a conflict.
pub(super) fn occupy(
    catalog: &Catalog,
    facts: &NodeFacts,
    mut node: Node,
    claims: &[ClaimPart],
    mut pods: Vec<(&PodFacts, Option<Part>)>,
) -> (Node, Occupancy) {
    for (pod, known_part) in &mut pods {
        *known_part = known_part.or_else(|| annotated_part(facts, pod));
    }
    let order = |(pod, known_part): &(&PodFacts, Option<Part>)| (known_part.is_none(), pod.created);
    pods.sort_by(|a, b| order(a).cmp(&order(b)).then_with(|| a.0.uid.cmp(&b.0.uid)));
    let mut occupancy = Occupancy::default();
    for claim_part in claims {
        let ClaimPart { claim, gpus, part, .. } = claim_part;
        // CPU and memory are counted below, for the claim's pod.
        let request = Request { cpu_milli: 0, memory_mib: 0, gpus: *gpus, models: ModelSet::ANY };
        if allocate_gpus(&mut node, &request, *part) {
            occupancy.claims.push(claim_part.clone());
        } else {
            let conflict = Conflict { holder: format!("claim {claim}"), gpus: *gpus };
            occupancy.conflicts.push(conflict);
        }
    }
    for (pod, known_part) in pods {
        let request = pod.resources.request_on(facts, catalog);
        // A pod with an invalid GPU request was bound by another scheduler, and holds no GPU.
        let request = request.unwrap_or(Request {
            cpu_milli: pod.resources.cpu_milli,
            memory_mib: pod.resources.memory_mib,
            gpus: Gpus::None,
            models: pod.resources.models(catalog),
        });
        let part = known_part.filter(|part| node.allocate(&request, *part).is_ok());
        let part = part.or_else(|| {
            let free = free_part(&node, &request)?;
            node.allocate(&request, free).is_ok().then_some(free)
        });
        let part = part.unwrap_or_else(|| {
            occupancy
                .conflicts
                .push(Conflict { holder: pod.namespaced_name(), gpus: request.gpus });
            allocate_available(&mut node, &request)
        });
        occupancy.parts.insert(pod.uid.clone(), part);
    }
    (node, occupancy)
}

/// Allocates GPUs to a claim without counting a pod. Returns false if they are not free.
fn allocate_gpus(node: &mut Node, request: &Request, part: Part) -> bool {
    let pods = node.pods;
    let is_allocated = node.allocate(request, part).is_ok();
    node.pods = pods;
    is_allocated
}

/// The GPUs that the pod's annotation names; `None` without an annotation, or if the node lacks one of them.
fn annotated_part(facts: &NodeFacts, pod: &PodFacts) -> Option<Part> {
    let position = |id| facts.gpus.iter().position(|gpu| gpu.id.as_ref() == Some(id));
    if pod.gpus.is_empty() {
        // gpushare's index counts only for GPUs without ids.
        let index =
            pod.gpu_index.filter(|it| facts.gpus.get(*it).is_some_and(|gpu| gpu.id.is_none()));
        return index.map(|index| Part::of(GpuSet::single(index)));
    }
    let positions: Option<Vec<_>> = pod.gpus.iter().map(position).collect();
    let gpus = positions?.into_iter().map(GpuSet::single);
    Some(Part::of(gpus.fold(GpuSet::default(), GpuSet::union)))
}

/// Free GPUs for a bound pod's request; `None` if too few are free. Unhealthy GPUs count too, because the pod may hold
/// a GPU that failed after the bind. Healthy GPUs come first, so that none looks free that the pod may hold. Shares
/// come from the GPUs with the smallest idle parts.
fn free_part(node: &Node, request: &Request) -> Option<Part> {
    let accepted = accepted(node, request);
    let gpus = match request.gpus {
        Gpus::None => GpuSet::default(),
        Gpus::Whole(count) => {
            let usable = node.free_gpus().intersection(accepted);
            let free = node.gpus_where(Gpu::has_no_holder).intersection(accepted);
            let set = if usable.len() >= u32::from(count) { usable } else { free };
            (set.len() >= u32::from(count)).then(|| set.lowest(u32::from(count)))?
        }
        Gpus::Share { count, .. } => {
            let single_share = Request { gpus: request.gpus.with_count(1), ..*request };
            let fits = |position: &usize| {
                node.clone().allocate(&single_share, Part::of(GpuSet::single(*position))).is_ok()
            };
            let mut fitting: Vec<_> = accepted.iter().filter(fits).collect();
            let preference = |position: &usize| {
                (!node.gpus[*position].is_usable, node.gpus[*position].idle_milli())
            };
            fitting.sort_by_key(preference);
            let chosen = fitting.get(..usize::from(count))?.iter();
            chosen.map(|position| GpuSet::single(*position)).fold(GpuSet::default(), GpuSet::union)
        }
        // Only claims get MIG instances.
        Gpus::Partition(_) => return None,
    };
    Some(Part::of(gpus))
}

/// GPUs whose product the pod accepts.
fn accepted(node: &Node, request: &Request) -> GpuSet {
    node.gpus_where(|gpu| request.models.contains(gpu.model))
}

/// Allocates the request's CPU and memory, and all free GPUs up to the requested number.
fn allocate_available(node: &mut Node, request: &Request) -> Part {
    let unheld = node.gpus_where(Gpu::has_no_holder);
    // A pod that a user bound may be on a node without an accepted product.
    let free = Some(unheld.intersection(accepted(node, request)))
        .filter(|it| !it.is_empty())
        .unwrap_or(unheld);
    let count = u8::try_from(free.len().min(request.gpu_count())).unwrap_or(u8::MAX);
    let gpus = if count == 0 { Gpus::None } else { Gpus::Whole(count) };
    let part = Part::of(free.lowest(u32::from(count)));
    let available_request = Request { gpus, ..*request };
    node.allocate(&available_request, part).expect("the chosen GPUs are free");
    part
}

// === impl Occupancy ===

impl Occupancy {
    /// UID of each pod, and the part that it holds.
    pub(super) fn parts(&self) -> impl Iterator<Item = (&String, Part)> {
        self.parts.iter().map(|(uid, part)| (uid, *part))
    }

    /// The part that a pod holds.
    pub(super) fn part(&self, uid: &str) -> Option<Part> {
        self.parts.get(uid).copied()
    }

    /// Claims with the GPUs that they hold.
    pub(super) fn claims(&self) -> &[ClaimPart] {
        &self.claims
    }

    /// Pods and claims that hold more than the node has free.
    pub(super) fn conflicts(&self) -> &[Conflict] {
        &self.conflicts
    }
}

// === impl Conflict ===

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} wants {:?}", self.holder, self.gpus)
    }
}
