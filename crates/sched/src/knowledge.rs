//! Knowledge of a policy: values derived from the forecast, and from each node's state.

use crate::{
    blocks::Blocks,
    forecast::{Forecast, Typical, typical},
    fragmentation::{NodeUse, Outlook},
    gpu::{GpuSet, ModelSet},
    node::Node,
    prices::Prices,
    scarcity::Scarcity,
    stranding::Stranding,
    view::{Catalog, NodeIx, View},
};

/// Values derived from a forecast, for one cluster.
#[derive(Debug, Default)]
pub struct Knowledge {
    typical: Vec<Typical>,
    outlooks: Vec<(ModelSet, Outlook)>,
    summaries: Vec<NodeSummary>,
    /// Prices of fractions of a GPU.
    pub prices: Prices,
    /// CPU that idle GPUs need.
    pub stranding: Stranding,
    /// Demand for single products.
    pub scarcity: Scarcity,
    /// Demand for several GPUs on one node.
    pub blocks: Blocks,
}

/// Values derived from a node's state, shared by its ranks for all requests.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeSummary {
    /// The node's version in the view, at least 1.
    version: u64,
    /// Index of the outlook for the node's products.
    outlook: usize,
    /// GPUs without a holder.
    pub(crate) free: GpuSet,
    /// The first GPU of each state, as a representative of its state.
    pub(crate) firsts: GpuSet,
    /// Value of the blocks of free GPUs.
    pub(crate) blocks: f64,
    /// Usability of the GPUs for typical requests.
    pub(crate) uses: NodeUse,
}

impl Knowledge {
    /// Computes the values derived from a forecast.
    pub fn of(forecast: &Forecast, view: &View) -> Self {
        let counts = forecast.counts(view);
        Self {
            typical: typical(&counts),
            outlooks: Vec::new(),
            summaries: Vec::new(),
            prices: Prices::of(&counts),
            stranding: Stranding::of(&counts),
            scarcity: Scarcity::of(&counts, view),
            blocks: Blocks::of(&counts),
        }
    }

    /// Updates the summary of a node if the node has changed.
    pub(crate) fn refresh(&mut self, view: &View, node: NodeIx) {
        self.summaries.resize_with(view.nodes().len(), NodeSummary::default);
        let position = node.0 as usize;
        let version = view.versions()[position];
        if self.summaries[position].version != version {
            self.summaries[position] = self.compute(view.catalog(), view.node(node), version);
        }
    }

    /// The summary of a node, as of the last [`Self::refresh`].
    pub(crate) fn summary(&self, node: NodeIx) -> &NodeSummary {
        &self.summaries[node.0 as usize]
    }

    fn compute(&mut self, catalog: &Catalog, node: &Node, version: u64) -> NodeSummary {
        let models = node.models();
        let known = self.outlooks.iter().position(|(other, _)| *other == models);
        let outlook = known.unwrap_or(self.outlooks.len());
        if known.is_none() {
            self.outlooks.push((models, Outlook::new(&self.typical, models)));
        }
        let free = node.free_gpus();
        NodeSummary {
            version,
            outlook,
            free,
            firsts: node.firsts(node.gpus_that(|_| true)),
            blocks: self.blocks.value(free.len(), node.cpu_milli.free),
            uses: self.outlooks[outlook].1.node_use(catalog, node),
        }
    }

    /// The outlook for the products of a node.
    pub(crate) fn outlook(&self, summary: &NodeSummary) -> &Outlook {
        &self.outlooks[summary.outlook].1
    }
}
