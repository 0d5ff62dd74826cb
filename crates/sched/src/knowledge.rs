//! Values that policies derive from the forecast and from each node's state.

use std::collections::HashMap;

use crate::{
    blocks::MultiGpuDemand,
    forecast::{Forecast, TypicalRequest, typical_requests},
    fragmentation::{NodeUsability, RequestMix},
    gpu::{GpuSet, ModelSet},
    node::Node,
    prices::Prices,
    request::SizeClass,
    scarcity::Scarcity,
    stranding::Stranding,
    view::{Catalog, ClusterView, NodeIndex},
};

/// Values derived from a forecast, for one cluster.
#[derive(Debug, Default)]
pub struct ForecastValues {
    typical_requests: Vec<TypicalRequest>,
    /// By set of a node's products.
    mixes: Vec<(ModelSet, RequestMix)>,
    summaries: Vec<NodeSummary>,
    /// Prices of fractions of a GPU.
    pub prices: Prices,
    /// CPU that a node should keep free for its idle GPUs.
    pub stranding: Stranding,
    /// Demand for single products.
    pub scarcity: Scarcity,
    /// Demand for several GPUs on one node.
    pub multi_gpu_demand: MultiGpuDemand,
}

/// Values derived from a node's state, shared by its ranks for all requests.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeSummary {
    /// The node's version in the view, at least 1.
    version: u64,
    /// Index of the request mix for the node's products.
    mix: usize,
    /// GPUs without a holder.
    pub(crate) free_gpus: GpuSet,
    /// The first GPU of each state. GPUs in the same state are interchangeable.
    pub(crate) representatives: GpuSet,
    /// Value of the blocks of free GPUs.
    pub(crate) multi_gpu_value: f64,
    /// Usability of the GPUs for typical requests.
    pub(crate) usability: NodeUsability,
}

impl ForecastValues {
    /// Computes the values derived from a forecast.
    pub fn of(forecast: &Forecast, view: &ClusterView) -> Self {
        let counts = forecast.counts(view);
        Self {
            typical_requests: typical_requests(&counts),
            mixes: Vec::new(),
            summaries: Vec::new(),
            prices: Prices::of(&counts),
            stranding: Stranding::of(&counts),
            scarcity: Scarcity::of(&counts, view),
            multi_gpu_demand: MultiGpuDemand::of(&counts),
        }
    }

    /// Updates the summary of a node if the node has changed.
    pub(crate) fn refresh(&mut self, view: &ClusterView, node: NodeIndex) {
        self.summaries.resize_with(view.nodes().len(), NodeSummary::default);
        let position = node.0 as usize;
        let version = view.versions()[position];
        if self.summaries[position].version != version {
            self.summaries[position] = self.compute(view.catalog(), view.node(node), version);
        }
    }

    /// The summary of a node, as of the last [`Self::refresh`].
    pub(crate) fn summary(&self, node: NodeIndex) -> &NodeSummary {
        &self.summaries[node.0 as usize]
    }

    /// Expected number of the cluster's idle GPUs that a typical request of this size cannot use. `None` if the size has
    /// no typical request.
    pub(crate) fn fragmentation(&self, size: SizeClass, view: &ClusterView) -> Option<f64> {
        let of_size = self.typical_requests.iter().filter(|it| it.request.class() == size);
        let total_weight: f64 = of_size.clone().map(|it| it.weight).sum();
        let typical: Vec<_> =
            of_size.map(|it| TypicalRequest { weight: it.weight / total_weight, ..*it }).collect();
        if typical.is_empty() {
            return None;
        }
        let mut mixes = HashMap::new();
        let nodes = view.nodes().iter().filter(|node| node.idle_milli() > 0);
        let fragmentation = nodes.map(|node| {
            let models = node.models();
            let mix = mixes.entry(models).or_insert_with(|| RequestMix::new(&typical, models));
            mix.node_usability(view.catalog(), node).fragmentation() / 1000.0
        });
        Some(fragmentation.sum())
    }

    fn compute(&mut self, catalog: &Catalog, node: &Node, version: u64) -> NodeSummary {
        let models = node.models();
        let existing = self.mixes.iter().position(|(other, _)| *other == models);
        let mix = existing.unwrap_or(self.mixes.len());
        if existing.is_none() {
            self.mixes.push((models, RequestMix::new(&self.typical_requests, models)));
        }
        let free = node.free_gpus();
        NodeSummary {
            version,
            mix,
            free_gpus: free,
            representatives: node.representatives(node.gpus_where(|_| true)),
            multi_gpu_value: self.multi_gpu_demand.value(free.len(), node.cpu_milli.free),
            usability: self.mixes[mix].1.node_usability(catalog, node),
        }
    }

    /// The request mix for the products of a node.
    pub(crate) fn mix(&self, summary: &NodeSummary) -> &RequestMix {
        &self.mixes[summary.mix].1
    }
}
