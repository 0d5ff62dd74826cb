//! Ranks of nodes for pods with claims, by the devices that the scheduler would allocate there.
//!
//! ```text
//!  specifications of the claims ──> shape ──────┐
//!                                               ├──> outcome: devices by position, losses ──┐
//!  slices and holders of a node ──> signature ──┘                                           ├──> rank, kept
//!  pods and free GPUs of the node, forecast ────────────────────────────────────────────────┘
//! ```
//!
//! Nodes with equal signatures give equal allocations, so a shape is allocated once for each signature. A node is
//! ranked again once it has changed. For claims that may read any attribute, by computed names or in a loop, nodes have
//! no signature: the claims are allocated on each node.

use std::{collections::HashMap, sync::Arc};

use windlass_sched::{
    allocator::{
        AttributesRead, ChosenDevice, Claims, DeviceSignatures, NodeLosses, NodeSignature, Pools,
        Selections, Taken,
    },
    node::Part,
    policy::{Explanation, Rank},
    request::Request,
    scheduler::Scheduler,
    view::{NodeIx, View},
};

use super::{claims::ClaimIndex, entry::Entry};

/// Maximum number of shapes with cached ranks: 24 MB in a cluster of 15,000 nodes.
const MAX_SHAPES: usize = 64;
/// Maximum number of cached outcomes of a shape. They serve until each node is ranked once.
const MAX_OUTCOMES: usize = 4096;
/// Work of one step, in ranked nodes: a few milliseconds.
const STEP: usize = 512;
/// Cost of one allocation, in ranked nodes.
const ALLOCATION_COST: usize = 8;

/// Cache of ranks for pods with claims, least recently used shape out first.
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
    /// The pod's request without devices, which `specs` has, and without main memory, which no rank depends on.
    pub(super) request: Request,
}

/// Inputs of a rank: the parts of the index that it reads.
pub(super) struct Cluster<'a> {
    pub(super) claims: &'a ClaimIndex,
    pub(super) entries: &'a [Entry],
    pub(super) versions: &'a [u64],
    pub(super) view: &'a View,
    pub(super) scheduler: &'a mut Scheduler,
}

#[derive(Debug)]
struct Shape {
    claims: Claims,
    read: AttributesRead,
    /// By the number of the node's signature; `None` if the claims do not fit.
    outcomes: HashMap<u32, Option<Arc<Outcome>>>,
    selections: Selections,
    /// By node position.
    ranks: Vec<CachedRank>,
    /// Version of the scheduler's forecast that `ranks` were computed with.
    forecast_version: u64,
    /// Number of the last step that used it.
    last_used: u64,
}

/// Rank of a node, valid for one version of the node. `None` if the node cannot serve the claims.
#[derive(Clone, Copy, Debug, Default)]
struct CachedRank {
    version: u64,
    rank: Option<Rank>,
}

/// An allocation on a node.
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
    /// Last number that was assigned. Numbers are never reused.
    count: u32,
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
    /// Does one step of work and writes each rank at the position of its node. Returns true once all nodes are ranked, or
    /// the claims are invalid.
    pub(super) fn step(
        &mut self,
        key: ShapeKey,
        prepare: impl FnOnce() -> Option<Claims>,
        cluster: &mut Cluster<'_>,
        nodes: impl Iterator<Item = NodeIx>,
        ranks: &mut [Option<Rank>],
    ) -> bool {
        let known = self.shapes.remove(&key);
        let Some(mut shape) = known.or_else(|| prepare().map(Shape::of)) else { return true };
        self.make_room();
        self.steps += 1;
        shape.last_used = self.steps;
        let signatures = self.signatures.entry(shape.read.clone()).or_default();
        let is_done = shape.rank(&key.request, signatures, cluster, nodes, ranks);
        self.shapes.insert(key, shape);
        is_done
    }

    /// Evicts the least recently used shape if the cache is full.
    fn make_room(&mut self) {
        if self.shapes.len() < MAX_SHAPES {
            return;
        }
        let oldest = self.shapes.iter().min_by_key(|(_, shape)| shape.last_used);
        if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
            self.shapes.remove(&oldest);
        }
        let shapes = &self.shapes;
        self.signatures.retain(|read, _| shapes.values().any(|shape| shape.read == *read));
    }
}

// === impl Shape ===

impl Shape {
    fn of(claims: Claims) -> Self {
        let read = claims.attributes_read();
        Self {
            claims,
            read,
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
        nodes: impl Iterator<Item = NodeIx>,
        ranks: &mut [Option<Rank>],
    ) -> bool {
        let forecast = cluster.scheduler.known();
        if self.forecast_version != forecast {
            self.forecast_version = forecast;
            self.ranks.clear();
        }
        self.ranks.resize(cluster.entries.len(), CachedRank::default());
        signatures.nodes.resize(cluster.entries.len(), None);
        let mut work = 0;
        for node in nodes {
            let position = node.0 as usize;
            let version = cluster.versions[position];
            if self.ranks[position].version != version {
                if work >= STEP {
                    return false;
                }
                let pools = cluster.pools(node);
                let outcome = pools.and_then(|pools| {
                    let taken = cluster.claims.taken();
                    self.outcome(signatures, (position, version), (pools, taken), &mut work)
                });
                let rank = outcome.and_then(|it| cluster.rate(node, request, &it));
                self.ranks[position] = CachedRank { version, rank };
            }
            ranks[position] = self.ranks[position].rank;
        }
        true
    }

    /// The outcome on a node: the cached one of its signature, or a new allocation.
    fn outcome(
        &mut self,
        signatures: &mut NodeSignatures,
        (position, version): (usize, u64),
        (pools, taken): (&Pools, &Taken),
        work: &mut usize,
    ) -> Option<Arc<Outcome>> {
        *work += 1;
        if self.read.is_any() {
            *work += ALLOCATION_COST;
            let chosen = self.claims.choose(pools, taken).ok()?;
            return Some(Arc::new(Outcome::of(pools, taken, chosen)));
        }
        let known = signatures.known((position, version), pools, taken, &self.read);
        if let Some(outcome) = self.outcomes.get(&known.number) {
            return outcome.clone();
        }
        *work += ALLOCATION_COST;
        let Self { claims, selections, .. } = self;
        let chosen = claims.choose_by_signature(pools, taken, &known.signature, selections).ok();
        let outcome = chosen.map(|chosen| Arc::new(Outcome::of(pools, taken, chosen)));
        if self.outcomes.len() >= MAX_OUTCOMES {
            self.outcomes.clear();
        }
        self.outcomes.insert(known.number, outcome.clone());
        outcome
    }
}

// === impl NodeSignatures ===

impl NodeSignatures {
    /// The signature of a node, computed again if the node has changed.
    fn known(
        &mut self,
        (position, version): (usize, u64),
        pools: &Pools,
        taken: &Taken,
        read: &AttributesRead,
    ) -> &CachedSignature {
        let known = &mut self.nodes[position];
        if known.as_ref().is_none_or(|known| known.version != version) {
            // Drops signatures of former states. One that comes back gets a new number.
            if self.numbers.len() > 2 * self.nodes.len() + MAX_OUTCOMES {
                self.numbers.retain(|signature, _| Arc::strong_count(signature) > 1);
            }
            let signature = Arc::new(NodeSignature::of(pools, taken, read, &mut self.devices));
            self.count += 1;
            let entry = self.numbers.entry(signature);
            // Nodes with equal signatures share one allocation of it.
            let signature = entry.key().clone();
            let number = *entry.or_insert(self.count);
            self.nodes[position] = Some(CachedSignature { version, signature, number });
        }
        self.nodes[position].as_ref().expect("set above")
    }
}

// === impl Outcome ===

impl Outcome {
    fn of(pools: &Pools, taken: &Taken, chosen: Vec<ChosenDevice>) -> Self {
        let losses = NodeLosses::of(pools, taken, &chosen);
        Self { chosen, losses }
    }
}

// === impl Cluster ===

impl<'a> Cluster<'a> {
    /// The terms of a node's rank; `None` if the claims do not fit.
    pub(super) fn explain(
        &mut self,
        node: NodeIx,
        request: &Request,
        claims: &Claims,
    ) -> Option<Explanation> {
        let (pools, taken) = (self.pools(node)?, self.claims.taken());
        let outcome = Outcome::of(pools, taken, claims.choose(pools, taken).ok()?);
        let (request, part) = self.placed(node, request, &outcome)?;
        let mut explanation = self.scheduler.explain_rate(self.view, node, &request, part)?;
        explanation.rank.score += outcome.losses.points();
        explanation.terms.extend(outcome.losses.terms());
        Some(explanation)
    }

    /// Rank of the scheduling policy for the outcome's GPUs, with the outcome's losses deducted.
    fn rate(&mut self, node: NodeIx, request: &Request, outcome: &Outcome) -> Option<Rank> {
        let (request, part) = self.placed(node, request, outcome)?;
        let rank = self.scheduler.rate(self.view, node, &request, part)?;
        Some(Rank { score: rank.score + outcome.losses.points(), ..rank })
    }

    /// The request completed with the outcome's GPUs, and their part of the node.
    fn placed(
        &self,
        node: NodeIx,
        request: &Request,
        outcome: &Outcome,
    ) -> Option<(Request, Part)> {
        let entry = &self.entries[node.0 as usize];
        let (gpus, part) = entry.together(self.pools(node)?, &outcome.chosen);
        Some((Request { gpus, ..*request }, part))
    }

    fn pools(&self, node: NodeIx) -> Option<&'a Pools> {
        self.claims.pools(&self.entries[node.0 as usize].object.name)
    }
}
