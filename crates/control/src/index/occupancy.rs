//! A node's free resources, from its facts and its pods.

use std::{collections::BTreeMap, fmt};

use windlass_sched::{
    gpu::{Gpu, GpuSet, ModelSet},
    node::{Node, Part},
    request::{Gpus, Request},
    view::Catalog,
};

use crate::facts::{NodeFacts, PodFacts};

/// The parts of a node that its pods hold.
#[derive(Debug, Default)]
pub(super) struct Occupancy {
    parts: BTreeMap<String, Part>,
    claims: Vec<ClaimPart>,
    conflicts: Vec<Conflict>,
}

/// GPUs of a node that a claim has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimPart {
    /// The claim, as `namespace/name`.
    pub claim: String,
    /// The pods for which it is reserved, as `namespace/name`.
    pub pods: Vec<String>,
    /// Its request of one result.
    pub gpus: Gpus,
    /// Its part of the node.
    pub part: Part,
}

/// A pod or a claim that holds more than its node has free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The pod or claim.
    pub holder: String,
    wanted: Gpus,
}

/// Counts the claims and pods on an empty node.
///
/// Claims come first: the API server holds their devices by name. Pods with known GPUs come before those whose GPUs nobody
/// said; among equals the older one comes first. A pod of another scheduler counts on GPUs that nobody else has, healthy or
/// not, as many as there are.
pub(super) fn occupy(
    catalog: &Catalog,
    facts: &NodeFacts,
    mut node: Node,
    claims: &[ClaimPart],
    mut pods: Vec<(&PodFacts, Option<Part>)>,
) -> (Node, Occupancy) {
    for (pod, decided) in &mut pods {
        *decided = decided.or_else(|| part_of(facts, pod));
    }
    let order = |(pod, decided): &(&PodFacts, Option<Part>)| (decided.is_none(), pod.created);
    pods.sort_by(|a, b| order(a).cmp(&order(b)).then_with(|| a.0.uid.cmp(&b.0.uid)));
    let mut occupancy = Occupancy::default();
    for held in claims {
        let ClaimPart { claim, gpus, part, .. } = held;
        // Processor time and memory are the pod's, which counts for itself.
        let request = Request { cpu_milli: 0, memory_mib: 0, gpus: *gpus, models: ModelSet::ANY };
        if take_gpus(&mut node, &request, *part) {
            occupancy.claims.push(held.clone());
        } else {
            let conflict = Conflict { holder: format!("claim {claim}"), wanted: *gpus };
            occupancy.conflicts.push(conflict);
        }
    }
    for (pod, decided) in pods {
        let request = pod.wish.request_on(facts, catalog);
        // A pod with an impossible wish was bound by somebody else, and runs without our GPUs.
        let request = request.unwrap_or(Request {
            cpu_milli: pod.wish.cpu_milli,
            memory_mib: pod.wish.memory_mib,
            gpus: Gpus::None,
            models: pod.wish.models(catalog),
        });
        let part = decided.filter(|part| node.take(&request, *part).is_ok());
        let part = part.or_else(|| {
            let free = free_part(&node, &request)?;
            node.take(&request, free).is_ok().then_some(free)
        });
        let part = part.unwrap_or_else(|| {
            occupancy.conflicts.push(Conflict { holder: pod.title(), wanted: request.gpus });
            take_what_is_there(&mut node, &request)
        });
        occupancy.parts.insert(pod.uid.clone(), part);
    }
    (node, occupancy)
}

/// Takes GPUs for a claim, which is no pod of its own.
fn take_gpus(node: &mut Node, request: &Request, part: Part) -> bool {
    let pods = node.pods;
    let is_taken = node.take(request, part).is_ok();
    node.pods = pods;
    is_taken
}

/// The GPUs that the pod's annotation names; none where the node lacks one of them.
fn part_of(facts: &NodeFacts, pod: &PodFacts) -> Option<Part> {
    let position = |id| facts.gpus.iter().position(|gpu| gpu.id.as_ref() == Some(id));
    if pod.gpus.is_empty() {
        // By index alone, where the GPUs have no ids.
        let index =
            pod.gpu_index.filter(|it| facts.gpus.get(*it).is_some_and(|gpu| gpu.id.is_none()));
        return index.map(|index| Part::of(GpuSet::one(index)));
    }
    let positions: Option<Vec<_>> = pod.gpus.iter().map(position).collect();
    let ones = positions?.into_iter().map(GpuSet::one);
    Some(Part::of(ones.fold(GpuSet::default(), GpuSet::or)))
}

/// GPUs that can hold the request. A pod keeps one that fails, so health does not matter.
fn free_part(node: &Node, request: &Request) -> Option<Part> {
    let accepted = accepted(node, request);
    let gpus = match request.gpus {
        Gpus::None => GpuSet::default(),
        Gpus::Whole(count) => {
            // Healthy ones first.
            let usable = node.free_gpus().and(accepted);
            let free = node.gpus_that(Gpu::is_unheld).and(accepted);
            let set = if usable.len() >= u32::from(count) { usable } else { free };
            (set.len() >= u32::from(count)).then(|| set.lowest(u32::from(count)))?
        }
        // A pod has no instance: those are for claims.
        Gpus::Share { count, .. } => {
            let one = Request { gpus: request.gpus.with_count(1), ..*request };
            let fits = |at: &usize| node.clone().take(&one, Part::of(GpuSet::one(*at))).is_ok();
            let mut fitting: Vec<_> = accepted.iter().filter(fits).collect();
            fitting.sort_by_key(|at| node.gpus[*at].idle_milli());
            let chosen = fitting.get(..usize::from(count))?.iter();
            chosen.map(|at| GpuSet::one(*at)).fold(GpuSet::default(), GpuSet::or)
        }
        Gpus::Partition(_) => return None,
    };
    Some(Part::of(gpus))
}

/// GPUs of a product that the pod accepts.
fn accepted(node: &Node, request: &Request) -> GpuSet {
    node.gpus_that(|gpu| request.models.has(gpu.model))
}

/// Takes the free GPUs, where there are fewer than the request has, and its processor time and memory.
fn take_what_is_there(node: &mut Node, request: &Request) -> Part {
    let all = node.gpus_that(Gpu::is_unheld);
    // A pod that was bound by hand may be on a node without such a product.
    let free = Some(all.and(accepted(node, request))).filter(|it| !it.is_empty()).unwrap_or(all);
    let count = u8::try_from(free.len().min(request.gpu_count())).unwrap_or(u8::MAX);
    let gpus = if count == 0 { Gpus::None } else { Gpus::Whole(count) };
    let part = Part::of(free.lowest(u32::from(count)));
    let rest = Request { gpus, ..*request };
    node.take(&rest, part).expect("as many free GPUs as are taken");
    part
}

// === impl Occupancy ===

impl Occupancy {
    /// Pods by their identity, and the part that each holds.
    pub(super) fn parts(&self) -> impl Iterator<Item = (&String, Part)> {
        self.parts.iter().map(|(uid, part)| (uid, *part))
    }

    /// The part that a pod holds.
    pub(super) fn part(&self, uid: &str) -> Option<Part> {
        self.parts.get(uid).copied()
    }

    /// Claims with what they hold.
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
        write!(f, "{} wants {:?}", self.holder, self.wanted)
    }
}
