//! The choice of a node: every node that fits is ranked, and the pod goes to the node with the highest rank.

use std::collections::HashMap;

use crate::{
    fit::{Fit, Misfit, fit},
    forecast::Forecast,
    gpu::GpuSet,
    knowledge::Knowledge,
    node::Part,
    policy::{self, Explanation, Input, Policy, Rank},
    random::Random,
    request::Request,
    view::{NodeIx, Placement, View},
};

/// Most cached ranks, one per node and request: 50 MB, or 280 requests in a cluster of 15,000 nodes.
const MOST_RANKS: usize = 1 << 22;
/// Growth after which the knowledge is computed again: by one half.
const LEARN_AT_GROWTH: u64 = 2;

/// Chooses nodes by a policy, and caches the ranks of nodes that have not changed.
///
/// A scheduler serves one view. A rebuilt view needs a new scheduler.
#[derive(Debug)]
pub struct Scheduler {
    policy: Policy,
    random: Random,
    forecast: Forecast,
    learns: bool,
    known: u64,
    knowledge: Knowledge,
    /// Free main memory of each node at version `changes` of the view.
    memory_mib: Vec<u32>,
    changes: u64,
    /// By request, without main memory.
    ranked: HashMap<Request, Ranked>,
}

/// The rank of each node at version `changes` of the view. Main memory is compared later.
#[derive(Debug, Default)]
struct Ranked {
    changes: u64,
    ranks: Vec<Option<Rank>>,
}

impl Scheduler {
    /// A scheduler with a constant forecast of future requests.
    pub fn informed(policy: Policy, forecast: &Forecast, view: &View, seed: u64) -> Self {
        let knowledge = Knowledge::of(forecast, view);
        Self { knowledge, learns: false, ..Self::learning(policy, seed) }
    }

    /// A scheduler that learns from the requests that it sees.
    pub fn learning(policy: Policy, seed: u64) -> Self {
        Self {
            policy,
            random: Random::new(seed),
            forecast: Forecast::default(),
            learns: true,
            known: 0,
            knowledge: Knowledge::default(),
            memory_mib: Vec::new(),
            changes: 0,
            ranked: HashMap::new(),
        }
    }

    /// Counts an arrived pod, before a node is chosen for it.
    pub fn observe(&mut self, view: &View, request: &Request) {
        if !self.learns {
            return;
        }
        self.forecast.observe(request);
        let seen = self.forecast.total();
        if seen > self.known + self.known / LEARN_AT_GROWTH {
            self.known = seen;
            self.knowledge = Knowledge::of(&self.forecast, view);
            self.ranked.clear();
        }
    }

    /// Chooses a node and a part of it; none where no node fits.
    pub fn decide(&mut self, view: &View, request: &Request) -> Option<Placement> {
        if self.policy == Policy::Random {
            return self.draw(view, request);
        }
        let mut best: Option<(Rank, NodeIx)> = None;
        for (node, rank) in self.ranks(view, request) {
            // The first of equal ranks wins.
            if best.is_none_or(|(best, _)| rank > best) {
                best = Some((rank, node));
            }
        }
        let (_, node) = best?;
        Some(Placement { node, part: self.part(view, node, request)? })
    }

    /// The nodes that fit, in the order of the view, each with its rank.
    pub fn ranks(
        &mut self,
        view: &View,
        request: &Request,
    ) -> impl Iterator<Item = (NodeIx, Rank)> + use<'_> {
        self.look_at(view);
        let shape = Request { memory_mib: 0, ..*request };
        self.make_room(view, &shape);
        self.rank(view, &shape);
        let ranked = &self.ranked[&shape];
        let memory_mib = request.memory_mib;
        let ranked = (0..).map(NodeIx).zip(ranked.ranks.iter().zip(&self.memory_mib));
        ranked.filter_map(move |(node, (rank, free_mib))| {
            let rank = (*rank)?;
            (*free_mib >= memory_mib).then_some((node, rank))
        })
    }

    /// Ranks the nodes that have changed.
    fn rank(&mut self, view: &View, shape: &Request) {
        let ranked = self.ranked.entry(*shape).or_default();
        ranked.ranks.resize(view.nodes().len(), None);
        let versions = (0..).map(NodeIx).zip(view.versions());
        for ((node, version), rank) in versions.zip(&mut ranked.ranks) {
            if *version > ranked.changes {
                *rank = fit(view.catalog(), view.node(node), shape).ok().map(|fit| {
                    let input = input(&mut self.knowledge, view, node, shape);
                    policy::rank(self.policy, &input, &fit).0
                });
            }
        }
        ranked.changes = view.changes();
    }

    /// Drops the ranks of the least recently ranked requests, until those of one more fit.
    fn make_room(&mut self, view: &View, shape: &Request) {
        if self.ranked.contains_key(shape) {
            return;
        }
        while (self.ranked.len() + 1) * view.nodes().len() > MOST_RANKS {
            let oldest = self.ranked.iter().min_by_key(|(_, ranked)| ranked.changes);
            let Some(oldest) = oldest.map(|(shape, _)| *shape) else { return };
            self.ranked.remove(&oldest);
        }
    }

    /// Copies the free memory of nodes that have changed.
    fn look_at(&mut self, view: &View) {
        self.memory_mib.resize(view.nodes().len(), 0);
        let nodes = view.versions().iter().zip(view.nodes());
        for (memory_mib, (version, node)) in self.memory_mib.iter_mut().zip(nodes) {
            if *version > self.changes {
                *memory_mib = node.memory_mib.free;
            }
        }
        self.changes = view.changes();
    }

    /// The part of a node that the policy would give to the request; none where it does not fit.
    pub fn part(&mut self, view: &View, node: NodeIx, request: &Request) -> Option<Part> {
        let fit = fit(view.catalog(), view.node(node), request).ok()?;
        Some(self.choose(view, node, request, &fit).1)
    }

    /// The rank of a node and the part of it that the policy chooses, among the given ways to serve the request.
    pub fn choose(
        &mut self,
        view: &View,
        node: NodeIx,
        request: &Request,
        fit: &Fit,
    ) -> (Rank, Part) {
        policy::rank(self.policy, &input(&mut self.knowledge, view, node, request), fit)
    }

    /// The rank of a node for a part that another component chose, by [`Policy::Windlass`]; `None` if the part is not free.
    pub fn rate(
        &mut self,
        view: &View,
        node: NodeIx,
        request: &Request,
        part: Part,
    ) -> Option<Rank> {
        policy::rate(&input(&mut self.knowledge, view, node, request), part)
    }

    /// The reasons for the rank that [`Self::rate`] gives; `None` if the part is not free.
    pub fn explain_rate(
        &mut self,
        view: &View,
        node: NodeIx,
        request: &Request,
        part: Part,
    ) -> Option<Explanation> {
        policy::explain_rate(&input(&mut self.knowledge, view, node, request), part)
    }

    /// Number of requests behind the forecast in use. Ranks of unchanged nodes are constant while this number is.
    pub fn known(&self) -> u64 {
        self.known
    }

    /// The reasons for a node's rank, from the functions that compute the rank.
    ///
    /// # Errors
    ///
    /// The reason why the node does not fit.
    pub fn explain(
        &mut self,
        view: &View,
        node: NodeIx,
        request: &Request,
    ) -> Result<Explanation, Misfit> {
        let fit = fit(view.catalog(), view.node(node), request)?;
        let input = input(&mut self.knowledge, view, node, request);
        Ok(policy::explain(self.policy, &input, &fit))
    }

    /// Idle GPUs of the cluster that a typical request cannot use, in expectation. Zero until requests were seen.
    pub fn fragmentation(&mut self, view: &View) -> f64 {
        let count = u32::try_from(view.nodes().len()).unwrap_or(u32::MAX);
        (0..count).map(|node| self.node_fragmentation(view, NodeIx(node))).sum()
    }

    /// The part of the fragmentation on one node.
    pub fn node_fragmentation(&mut self, view: &View, node: NodeIx) -> f64 {
        self.knowledge.look_at(view, node);
        self.knowledge.standing(node).uses.fragmentation() / 1000.0
    }

    /// Any node that fits, and any part of it.
    fn draw(&mut self, view: &View, request: &Request) -> Option<Placement> {
        let fits = |node: &NodeIx| fit(view.catalog(), view.node(*node), request).is_ok();
        let count = u32::try_from(view.nodes().len()).unwrap_or(u32::MAX);
        let nodes: Vec<_> = (0..count).map(NodeIx).filter(fits).collect();
        if nodes.is_empty() {
            return None;
        }
        let node = nodes[self.random.below(nodes.len())];
        let fit = fit(view.catalog(), view.node(node), request).ok()?;
        let part = match fit {
            Fit::Share { gpus, count } => {
                let mut drawn = GpuSet::default();
                for _ in 0..count {
                    let rest = gpus.without(drawn);
                    let nth = self.random.below(rest.len() as usize);
                    let gpu = rest.iter().nth(nth).expect("drawn below the number of GPUs");
                    drawn = drawn.or(GpuSet::one(gpu));
                }
                Part::of(drawn)
            }
            Fit::Partition(places) => places[self.random.below(places.len())],
            Fit::Node => Part::default(),
            Fit::Whole { free, count } => Part::of(free.lowest(count)),
        };
        Some(Placement { node, part })
    }
}

fn input<'a>(
    knowledge: &'a mut Knowledge,
    view: &'a View,
    node: NodeIx,
    request: &'a Request,
) -> Input<'a> {
    knowledge.look_at(view, node);
    let standing = knowledge.standing(node);
    Input { catalog: view.catalog(), knowledge, node: view.node(node), standing, request }
}
