//! The choice of a node: every node that fits is ranked, and the highest rank has the pod.

use std::collections::HashMap;

use crate::{
    fit::{Fit, fit},
    forecast::Forecast,
    gpu::GpuSet,
    knowledge::Knowledge,
    node::{Node, Part},
    policy::{self, Input, Policy, Rank},
    random::Random,
    request::Request,
    view::{NodeIx, Placement, View},
};

/// Most ranks that are kept, of a node for a request each: 25 MB.
const MOST_RANKS: usize = 1 << 20;
/// A forecast is drawn anew when it has grown by one part in so many.
const LEARN_AT_GROWTH: u64 = 2;

/// Chooses nodes by a policy, and keeps the ranks of nodes that have not changed.
///
/// A scheduler serves one view. A view that was built anew needs a new one.
#[derive(Debug)]
pub struct Scheduler {
    policy: Policy,
    random: Random,
    forecast: Forecast,
    learns: bool,
    known: u64,
    knowledge: Knowledge,
    ranked: HashMap<Request, Vec<Ranked>>,
}

/// The rank of a node at one of its versions, the first of which is one.
#[derive(Clone, Copy, Debug, Default)]
struct Ranked {
    version: u64,
    rank: Option<Rank>,
}

impl Scheduler {
    /// A scheduler that knows the requests to come from a forecast that never changes.
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
            ranked: HashMap::new(),
        }
    }

    /// Counts a pod that came, before a node is chosen for it.
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
        let with_one_more = (self.ranked.len() + 1) * view.nodes().len();
        if with_one_more > MOST_RANKS && !self.ranked.contains_key(request) {
            self.ranked.clear();
        }
        let ranked = self.ranked.entry(*request).or_default();
        ranked.resize(view.nodes().len(), Ranked::default());
        let versions = view.versions().iter().zip(view.nodes());
        for (ranked, (version, node)) in ranked.iter_mut().zip(versions) {
            if ranked.version != *version {
                self.knowledge.prepare(node.models());
                let (catalog, knowledge) = (view.catalog(), &self.knowledge);
                let input = Input { catalog, knowledge, node, request };
                let rank = policy::rank(self.policy, &input).map(|(rank, _)| rank);
                *ranked = Ranked { version: *version, rank };
            }
        }
        let ranked = (0..).map(NodeIx).zip(ranked.iter());
        ranked.filter_map(|(node, ranked)| Some((node, ranked.rank?)))
    }

    /// The part of a node that the policy would give to the request; none where it does not fit.
    pub fn part(&mut self, view: &View, node: NodeIx, request: &Request) -> Option<Part> {
        let node = view.node(node);
        self.knowledge.prepare(node.models());
        let input = Input { catalog: view.catalog(), knowledge: &self.knowledge, node, request };
        policy::rank(self.policy, &input).map(|(_, part)| part)
    }

    /// Idle GPUs of the cluster that a typical request cannot use, in expectation. Zero until requests were seen.
    pub fn fragmentation(&mut self, view: &View) -> f64 {
        let of_node = |node: &Node| {
            self.knowledge.prepare(node.models());
            self.knowledge.outlook(node.models()).fragmentation(view.catalog(), node) / 1000.0
        };
        view.nodes().iter().map(of_node).sum()
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
            Fit::Share(gpus) => {
                let nth = self.random.below(gpus.len() as usize);
                let gpu = gpus.iter().nth(nth).expect("drawn below the number of GPUs");
                Part { gpus: GpuSet::one(gpu), slices: 0 }
            }
            Fit::Partition(places) => places[self.random.below(places.len())],
            Fit::Node | Fit::Whole { .. } => policy::parts(view.node(node), &fit)[0],
        };
        Some(Placement { node, part })
    }
}
