//! Scheduler: ranks every node that fits, and chooses the node with the highest rank.

use std::collections::HashMap;

use crate::{
    fit::{Fit, Misfit, fit},
    forecast::Forecast,
    gpu::GpuSet,
    knowledge::ForecastValues,
    node::Part,
    policy::{self, Explanation, Policy, Rank, RankInput},
    random::Random,
    request::{Request, SizeClass},
    view::{ClusterView, NodeIndex, Placement},
};

/// Maximum number of cached ranks, one per node and request: 50 MB, or 280 requests in a cluster of 15,000 nodes.
const MAX_RANKS: usize = 1 << 22;
/// The forecast values are computed again each time the number of observed requests has grown by `1 / RELEARN_DIVISOR`.
const RELEARN_DIVISOR: u64 = 2;

/// Chooses nodes by a policy, and caches the ranks of nodes that have not changed.
///
/// A scheduler serves one view. A rebuilt view needs a new scheduler.
#[derive(Debug)]
pub struct Scheduler {
    policy: Policy,
    random: Random,
    forecast: Forecast,
    /// True if observed requests update the forecast.
    is_learning: bool,
    /// Number of requests from which `forecast_values` was computed.
    forecast_size: u64,
    forecast_values: ForecastValues,
    /// Free main memory of each node, at version `changes` of the view.
    memory_mib: Vec<u32>,
    changes: u64,
    /// Cached ranks by request, main memory left out.
    rank_cache: HashMap<Request, CachedRanks>,
}

/// The rank of each node at version `changes` of the view, main memory left out. `None` if the node does not fit.
#[derive(Debug, Default)]
struct CachedRanks {
    changes: u64,
    ranks: Vec<Option<Rank>>,
}

impl Scheduler {
    /// A scheduler with a constant forecast of future requests.
    pub fn with_forecast(
        policy: Policy,
        forecast: &Forecast,
        view: &ClusterView,
        seed: u64,
    ) -> Self {
        let forecast_values = ForecastValues::of(forecast, view);
        Self { forecast_values, is_learning: false, ..Self::learning(policy, seed) }
    }

    /// A scheduler that learns its forecast from observed requests.
    pub fn learning(policy: Policy, seed: u64) -> Self {
        Self {
            policy,
            random: Random::new(seed),
            forecast: Forecast::default(),
            is_learning: true,
            forecast_size: 0,
            forecast_values: ForecastValues::default(),
            memory_mib: Vec::new(),
            changes: 0,
            rank_cache: HashMap::new(),
        }
    }

    /// Adds the request of a new pod to the forecast. Call it before choosing a node for the pod.
    pub fn observe(&mut self, view: &ClusterView, request: &Request) {
        if !self.is_learning {
            return;
        }
        self.forecast.observe(request);
        let total = self.forecast.total();
        if total > self.forecast_size + self.forecast_size / RELEARN_DIVISOR {
            self.forecast_size = total;
            self.forecast_values = ForecastValues::of(&self.forecast, view);
            self.rank_cache.clear();
        }
    }

    /// Chooses a node and a part of it; `None` if no node fits.
    pub fn choose_placement(&mut self, view: &ClusterView, request: &Request) -> Option<Placement> {
        if self.policy == Policy::Random {
            return self.choose_randomly(view, request);
        }
        let mut best: Option<(Rank, NodeIndex)> = None;
        for (node, rank) in self.ranks(view, request) {
            // Of equal ranks the first node wins.
            if best.is_none_or(|(best, _)| rank > best) {
                best = Some((rank, node));
            }
        }
        let (_, node) = best?;
        Some(Placement { node, part: self.choose_part(view, node, request)? })
    }

    /// The nodes that fit, in the view's order, each with its rank.
    pub fn ranks(
        &mut self,
        view: &ClusterView,
        request: &Request,
    ) -> impl Iterator<Item = (NodeIndex, Rank)> + use<'_> {
        self.refresh_memory(view);
        let shape = Request { memory_mib: 0, ..*request };
        self.make_room_for(view, &shape);
        self.rank(view, &shape);
        let cached_ranks = &self.rank_cache[&shape];
        let memory_mib = request.memory_mib;
        let cached_ranks =
            (0..).map(NodeIndex).zip(cached_ranks.ranks.iter().zip(&self.memory_mib));
        cached_ranks.filter_map(move |(node, (rank, free_mib))| {
            let rank = (*rank)?;
            (*free_mib >= memory_mib).then_some((node, rank))
        })
    }

    /// Ranks the nodes that have changed since their cached rank.
    fn rank(&mut self, view: &ClusterView, shape: &Request) {
        let cached_ranks = self.rank_cache.entry(*shape).or_default();
        cached_ranks.ranks.resize(view.nodes().len(), None);
        let versions = (0..).map(NodeIndex).zip(view.versions());
        for ((node, version), rank) in versions.zip(&mut cached_ranks.ranks) {
            if *version > cached_ranks.changes {
                *rank = fit(view.catalog(), view.node(node), shape).ok().map(|fit| {
                    let input = input(&mut self.forecast_values, view, node, shape);
                    policy::rank(self.policy, &input, &fit).0
                });
            }
        }
        cached_ranks.changes = view.changes();
    }

    /// Evicts the least recently ranked requests until one more request fits the cache.
    fn make_room_for(&mut self, view: &ClusterView, shape: &Request) {
        if self.rank_cache.contains_key(shape) {
            return;
        }
        while (self.rank_cache.len() + 1) * view.nodes().len() > MAX_RANKS {
            let oldest =
                self.rank_cache.iter().min_by_key(|(_, cached_ranks)| cached_ranks.changes);
            let Some(oldest) = oldest.map(|(shape, _)| *shape) else { return };
            self.rank_cache.remove(&oldest);
        }
    }

    /// Copies the free memory of nodes that have changed.
    fn refresh_memory(&mut self, view: &ClusterView) {
        self.memory_mib.resize(view.nodes().len(), 0);
        let nodes = view.versions().iter().zip(view.nodes());
        for (memory_mib, (version, node)) in self.memory_mib.iter_mut().zip(nodes) {
            if *version > self.changes {
                *memory_mib = node.memory_mib.free;
            }
        }
        self.changes = view.changes();
    }

    /// The part of a node that the policy would give to the request; `None` if the request does not fit.
    pub fn choose_part(
        &mut self,
        view: &ClusterView,
        node: NodeIndex,
        request: &Request,
    ) -> Option<Part> {
        let fit = fit(view.catalog(), view.node(node), request).ok()?;
        Some(self.choose(view, node, request, &fit).1)
    }

    /// The part of a node that the policy chooses among those of `fit`, and the node's rank with it.
    pub fn choose(
        &mut self,
        view: &ClusterView,
        node: NodeIndex,
        request: &Request,
        fit: &Fit,
    ) -> (Rank, Part) {
        policy::rank(self.policy, &input(&mut self.forecast_values, view, node, request), fit)
    }

    /// The rank of a node by [`Policy::Windlass`] for a given part; `None` if the part is not free.
    pub fn rank_part(
        &mut self,
        view: &ClusterView,
        node: NodeIndex,
        request: &Request,
        part: Part,
    ) -> Option<Rank> {
        policy::rank_part(&input(&mut self.forecast_values, view, node, request), part)
    }

    /// The terms of the rank by [`Self::rank_part`]; `None` if the part is not free.
    pub fn explain_part(
        &mut self,
        view: &ClusterView,
        node: NodeIndex,
        request: &Request,
        part: Part,
    ) -> Option<Explanation> {
        policy::explain_part(&input(&mut self.forecast_values, view, node, request), part)
    }

    /// Version of the forecast that ranks use: its number of requests. While it is equal, ranks of unchanged nodes are
    /// equal.
    pub fn forecast_version(&self) -> u64 {
        self.forecast_size
    }

    /// The terms of a node's rank, computed by the same functions as the rank.
    ///
    /// # Errors
    ///
    /// The reason why the node does not fit.
    pub fn explain(
        &mut self,
        view: &ClusterView,
        node: NodeIndex,
        request: &Request,
    ) -> Result<Explanation, Misfit> {
        let fit = fit(view.catalog(), view.node(node), request)?;
        let input = input(&mut self.forecast_values, view, node, request);
        Ok(policy::explain(self.policy, &input, &fit))
    }

    /// Expected number of the cluster's idle GPUs that a typical request cannot use. Zero before the first request.
    pub fn fragmentation(&mut self, view: &ClusterView) -> f64 {
        let count = u32::try_from(view.nodes().len()).unwrap_or(u32::MAX);
        (0..count).map(|node| self.node_fragmentation(view, NodeIndex(node))).sum()
    }

    /// The same for the typical requests of each size, for sizes that have some.
    pub fn fragmentation_by_size(&self, view: &ClusterView) -> Vec<(SizeClass, f64)> {
        let sizes = SizeClass::ALL.into_iter().filter(|size| *size != SizeClass::CpuOnly);
        let fragmentation = |size| Some((size, self.forecast_values.fragmentation(size, view)?));
        sizes.filter_map(fragmentation).collect()
    }

    /// Expected number of one node's idle GPUs that a typical request cannot use.
    pub fn node_fragmentation(&mut self, view: &ClusterView, node: NodeIndex) -> f64 {
        self.forecast_values.refresh(view, node);
        self.forecast_values.summary(node).usability.fragmentation() / 1000.0
    }

    /// Chooses a random node that fits, and a random part of it.
    fn choose_randomly(&mut self, view: &ClusterView, request: &Request) -> Option<Placement> {
        let fits = |node: &NodeIndex| fit(view.catalog(), view.node(*node), request).is_ok();
        let count = u32::try_from(view.nodes().len()).unwrap_or(u32::MAX);
        let nodes: Vec<_> = (0..count).map(NodeIndex).filter(fits).collect();
        if nodes.is_empty() {
            return None;
        }
        let node = nodes[self.random.below(nodes.len())];
        let fit = fit(view.catalog(), view.node(node), request).ok()?;
        let part = match fit {
            Fit::Share { gpus, count } => {
                let mut chosen = GpuSet::default();
                for _ in 0..count {
                    let remaining = gpus.difference(chosen);
                    let nth = self.random.below(remaining.len() as usize);
                    let gpu = remaining.iter().nth(nth).expect("nth is below the number of GPUs");
                    chosen = chosen.union(GpuSet::single(gpu));
                }
                Part::of(chosen)
            }
            Fit::Partition(places) => places[self.random.below(places.len())],
            Fit::NoGpu => Part::default(),
            Fit::Whole { free, count } => Part::of(free.lowest(count)),
        };
        Some(Placement { node, part })
    }
}

fn input<'a>(
    forecast_values: &'a mut ForecastValues,
    view: &'a ClusterView,
    node: NodeIndex,
    request: &'a Request,
) -> RankInput<'a> {
    forecast_values.refresh(view, node);
    let summary = forecast_values.summary(node);
    RankInput { catalog: view.catalog(), forecast_values, node: view.node(node), summary, request }
}
