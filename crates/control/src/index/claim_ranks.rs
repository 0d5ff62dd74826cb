//! Ranks of nodes for pods with claims, by the devices that the scheduler would allocate there.
//!
//! ```text
//!  specifications of the claims ──> shape ──────┐
//!                                               ├──> outcome: devices by position, losses ──┐
//!  slices and holders of a node ──> signature ──┘                                           ├──> rank, cached
//!  pods and free GPUs of the node, forecast ────────────────────────────────────────────────┘
//! ```
//!
//! A shape is the part of a pod that decides its ranks: the claims' specifications and the pod's request. Nodes with
//! equal signatures give equal allocations, so a shape is allocated once per signature. A changed node is ranked again.
//! Claims that may read any attribute, by computed names or in a loop, use no signatures: they are allocated on each
//! node.

use std::{collections::HashMap, sync::Arc};

use windlass_sched::{
    allocator::{
        AllocatedDevices, AttributesRead, ChosenDevice, Claims, DeviceSignatures, NodeLosses,
        NodeSignature, Pools, Selections,
    },
    node::Part,
    policy::{Explanation, Rank},
    request::Request,
    scheduler::Scheduler,
    view::{ClusterView, NodeIndex},
};

use super::{claims::ClaimIndex, entry::NodeEntry};

/// Maximum number of shapes with cached ranks: 24 MB in a cluster of 15,000 nodes.
const MAX_SHAPES: usize = 64;
/// Maximum number of cached outcomes of a shape. An outcome is needed until its nodes have cached ranks.
const MAX_OUTCOMES: usize = 4096;
/// Maximum work of one step, in ranked nodes: a few milliseconds.
const MAX_STEP_WORK: usize = 512;
/// Cost of one allocation, in ranked nodes.
const ALLOCATION_COST: usize = 8;

/// Cache of ranks for pods with claims. It evicts the least recently used shape.
#[derive(Debug, Default)]
pub(super) struct ClaimRanks {
    shapes: HashMap<ShapeKey, Shape>,
    signatures: HashMap<AttributesRead, NodeSignatures>,
    /// Number of steps so far: the clock of `last_used`.
    steps: u64,
}

/// Identity of a shape: pods with equal keys have equal ranks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ShapeKey {
    /// The specifications of all claims.
    pub(super) specs: String,
    /// The pod's request without devices, which are in `specs`, and without main memory, which affects no rank.
    pub(super) request: Request,
}

/// The parts of the index from which ranks are computed.
pub(super) struct Cluster<'a> {
    pub(super) claims: &'a ClaimIndex,
    pub(super) entries: &'a [NodeEntry],
    pub(super) versions: &'a [u64],
    pub(super) view: &'a ClusterView,
    pub(super) scheduler: &'a mut Scheduler,
}

/// Claims of a shape, with the cached outcomes and ranks.
#[derive(Debug)]
struct Shape {
    claims: Claims,
    attributes: AttributesRead,
    /// By the number of the node's signature; `None` if the claims do not fit.
    outcomes: HashMap<u32, Option<Arc<Outcome>>>,
    selections: Selections,
    /// By node position.
    ranks: Vec<CachedRank>,
    /// Version of the scheduler's forecast that `ranks` were computed with.
    forecast_version: u64,
    /// Number of the last step that used this shape.
    last_used: u64,
}

/// Rank of a node, valid for one version of the node. `None` if the node cannot serve the claims.
#[derive(Clone, Copy, Debug, Default)]
struct CachedRank {
    version: u64,
    rank: Option<Rank>,
}

/// The claims' devices on a node, and the losses that the allocation causes there.
#[derive(Debug)]
struct Outcome {
    chosen: Vec<ChosenDevice>,
    losses: NodeLosses,
}

/// Signatures of all nodes, for claims that read the same attributes.
#[derive(Debug, Default)]
struct NodeSignatures {
    devices: DeviceSignatures,
    numbers: HashMap<Arc<NodeSignature>, u32>,
    /// Last assigned number. Numbers are never reused.
    last_number: u32,
    /// By node position.
    nodes: Vec<Option<CachedSignature>>,
}

/// Signature of a node with its number, valid for one version of the node.
#[derive(Clone, Debug)]
struct CachedSignature {
    version: u64,
    signature: Arc<NodeSignature>,
    number: u32,
}

// === impl ClaimRanks ===

impl ClaimRanks {
    /// Does one step of work and writes each rank at the position of its node. Returns true once all nodes are ranked,
    /// or if `prepare` returns no claims.
    pub(super) fn step(
        &mut self,
        key: ShapeKey,
        prepare: impl FnOnce() -> Option<Claims>,
        cluster: &mut Cluster<'_>,
        nodes: impl Iterator<Item = NodeIndex>,
        ranks: &mut [Option<Rank>],
    ) -> bool {
        let cached = self.shapes.remove(&key);
        let Some(mut shape) = cached.or_else(|| prepare().map(Shape::of)) else { return true };
        self.evict_if_full();
        self.steps += 1;
        shape.last_used = self.steps;
        let signatures = self.signatures.entry(shape.attributes.clone()).or_default();
        let is_done = shape.rank(&key.request, signatures, cluster, nodes, ranks);
        self.shapes.insert(key, shape);
        is_done
    }

    /// Evicts the least recently used shape if the cache is full.
    fn evict_if_full(&mut self) {
        if self.shapes.len() < MAX_SHAPES {
            return;
        }
        let oldest = self.shapes.iter().min_by_key(|(_, shape)| shape.last_used);
        if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
            self.shapes.remove(&oldest);
        }
        let shapes = &self.shapes;
        let is_used = |attributes: &AttributesRead| {
            shapes.values().any(|shape| shape.attributes == *attributes)
        };
        self.signatures.retain(|attributes, _| is_used(attributes));
    }
}

// === impl Shape ===

impl Shape {
    fn of(claims: Claims) -> Self {
        let attributes = claims.attributes_read();
        Self {
            claims,
            attributes,
            outcomes: HashMap::new(),
            selections: Selections::default(),
            ranks: Vec::new(),
            forecast_version: 0,
            last_used: 0,
        }
    }

    fn rank(
        &mut self,
        request: &Request,
        signatures: &mut NodeSignatures,
        cluster: &mut Cluster<'_>,
        nodes: impl Iterator<Item = NodeIndex>,
        ranks: &mut [Option<Rank>],
    ) -> bool {
        let forecast_version = cluster.scheduler.forecast_version();
        if self.forecast_version != forecast_version {
            self.forecast_version = forecast_version;
            self.ranks.clear();
        }
        self.ranks.resize(cluster.entries.len(), CachedRank::default());
        signatures.nodes.resize(cluster.entries.len(), None);
        let mut work = 0;
        for node in nodes {
            let position = node.0 as usize;
            let version = cluster.versions[position];
            if self.ranks[position].version != version {
                if work >= MAX_STEP_WORK {
                    return false;
                }
                let pools = cluster.pools(node);
                let outcome = pools.and_then(|pools| {
                    let allocated = cluster.claims.allocated();
                    self.outcome(signatures, (position, version), (pools, allocated), &mut work)
                });
                let rank = outcome.and_then(|it| cluster.rank_part(node, request, &it));
                self.ranks[position] = CachedRank { version, rank };
            }
            ranks[position] = self.ranks[position].rank;
        }
        true
    }

    /// The outcome on a node: cached for its signature, or newly allocated. `None` if the claims do not fit.
    fn outcome(
        &mut self,
        signatures: &mut NodeSignatures,
        (position, version): (usize, u64),
        (pools, allocated): (&Pools, &AllocatedDevices),
        work: &mut usize,
    ) -> Option<Arc<Outcome>> {
        *work += 1;
        if self.attributes.is_any() {
            *work += ALLOCATION_COST;
            let chosen = self.claims.choose(pools, allocated).ok()?;
            return Some(Arc::new(Outcome::of(pools, allocated, chosen)));
        }
        let cached =
            signatures.get_or_compute((position, version), pools, allocated, &self.attributes);
        if let Some(outcome) = self.outcomes.get(&cached.number) {
            return outcome.clone();
        }
        *work += ALLOCATION_COST;
        let Self { claims, selections, .. } = self;
        let chosen =
            claims.choose_by_signature(pools, allocated, &cached.signature, selections).ok();
        let outcome = chosen.map(|chosen| Arc::new(Outcome::of(pools, allocated, chosen)));
        if self.outcomes.len() >= MAX_OUTCOMES {
            self.outcomes.clear();
        }
        self.outcomes.insert(cached.number, outcome.clone());
        outcome
    }
}

// === impl NodeSignatures ===

impl NodeSignatures {
    /// The cached signature of a node, computed again if the node has changed.
    fn get_or_compute(
        &mut self,
        (position, version): (usize, u64),
        pools: &Pools,
        allocated: &AllocatedDevices,
        attributes: &AttributesRead,
    ) -> &CachedSignature {
        let cached = &self.nodes[position];
        if cached.as_ref().is_none_or(|cached| cached.version != version) {
            // Drops signatures that no node has now. Such a signature gets a new number if it appears again.
            if self.numbers.len() > 2 * self.nodes.len() + MAX_OUTCOMES {
                self.numbers.retain(|signature, _| Arc::strong_count(signature) > 1);
            }
            let signature =
                Arc::new(NodeSignature::of(pools, allocated, attributes, &mut self.devices));
            self.last_number += 1;
            let entry = self.numbers.entry(signature);
            // Nodes with equal signatures share one `Arc`.
            let signature = entry.key().clone();
            let number = *entry.or_insert(self.last_number);
            self.nodes[position] = Some(CachedSignature { version, signature, number });
        }
        self.nodes[position].as_ref().expect("the signature was cached above")
    }
}

// === impl Outcome ===

impl Outcome {
    fn of(pools: &Pools, allocated: &AllocatedDevices, chosen: Vec<ChosenDevice>) -> Self {
        let losses = NodeLosses::of(pools, allocated, &chosen);
        Self { chosen, losses }
    }
}

// === impl Cluster ===

impl<'a> Cluster<'a> {
    /// The terms of a node's rank; `None` if the claims do not fit.
    pub(super) fn explain(
        &mut self,
        node: NodeIndex,
        request: &Request,
        claims: &Claims,
    ) -> Option<Explanation> {
        let (pools, allocated) = (self.pools(node)?, self.claims.allocated());
        let outcome = Outcome::of(pools, allocated, claims.choose(pools, allocated).ok()?);
        let (request, part) = self.with_gpus(node, request, &outcome)?;
        let mut explanation = self.scheduler.explain_part(self.view, node, &request, part)?;
        explanation.rank.score += outcome.losses.points();
        explanation.terms.extend(outcome.losses.terms());
        Some(explanation)
    }

    /// Rank of the scheduling policy for the outcome's GPUs, with the outcome's losses deducted.
    fn rank_part(&mut self, node: NodeIndex, request: &Request, outcome: &Outcome) -> Option<Rank> {
        let (request, part) = self.with_gpus(node, request, outcome)?;
        let rank = self.scheduler.rank_part(self.view, node, &request, part)?;
        Some(Rank { score: rank.score + outcome.losses.points(), ..rank })
    }

    /// The pod's request with the outcome's GPUs, and the part of the node that these GPUs make up.
    fn with_gpus(
        &self,
        node: NodeIndex,
        request: &Request,
        outcome: &Outcome,
    ) -> Option<(Request, Part)> {
        let entry = &self.entries[node.0 as usize];
        let (gpus, part) = entry.allocated_gpus(self.pools(node)?, &outcome.chosen);
        Some((Request { gpus, ..*request }, part))
    }

    fn pools(&self, node: NodeIndex) -> Option<&'a Pools> {
        self.claims.pools(&self.entries[node.0 as usize].object.name)
    }
}
