//! Knowledge of a policy: quantities that follow from the forecast of requests, and from each node's state.

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

/// Quantities that follow from a forecast, for one cluster.
#[derive(Debug, Default)]
pub struct Knowledge {
    typical: Vec<Typical>,
    outlooks: Vec<(ModelSet, Outlook)>,
    standings: Vec<Standing>,
    /// Prices of fractions of a GPU.
    pub prices: Prices,
    /// CPU that GPUs need.
    pub stranding: Stranding,
    /// Demand for single products.
    pub scarcity: Scarcity,
    /// Demand for several GPUs of one node.
    pub blocks: Blocks,
}

/// Facts of a node's state that its ranks for all requests share.
#[derive(Clone, Debug, Default)]
pub(crate) struct Standing {
    /// The node's version, at least 1.
    version: u64,
    outlook: usize,
    /// GPUs without a holder.
    pub(crate) free: GpuSet,
    /// One GPU of each state, to represent those in the same state.
    pub(crate) firsts: GpuSet,
    /// Value of the blocks of free GPUs.
    pub(crate) blocks: f64,
    /// Use of the GPUs by typical requests.
    pub(crate) uses: NodeUse,
}

impl Knowledge {
    /// Computes the quantities of a forecast.
    pub fn of(forecast: &Forecast, view: &View) -> Self {
        let counts = forecast.counts(view);
        Self {
            typical: typical(&counts),
            outlooks: Vec::new(),
            standings: Vec::new(),
            prices: Prices::of(&counts),
            stranding: Stranding::of(&counts),
            scarcity: Scarcity::of(&counts, view),
            blocks: Blocks::of(&counts),
        }
    }

    /// Computes the facts of a node if it has changed.
    pub(crate) fn look_at(&mut self, view: &View, node: NodeIx) {
        self.standings.resize_with(view.nodes().len(), Standing::default);
        let position = node.0 as usize;
        let version = view.versions()[position];
        if self.standings[position].version != version {
            self.standings[position] = self.compute(view.catalog(), view.node(node), version);
        }
    }

    /// The facts of a node, as last computed by [`Self::look_at`].
    pub(crate) fn standing(&self, node: NodeIx) -> &Standing {
        &self.standings[node.0 as usize]
    }

    fn compute(&mut self, catalog: &Catalog, node: &Node, version: u64) -> Standing {
        let models = node.models();
        let known = self.outlooks.iter().position(|(other, _)| *other == models);
        let outlook = known.unwrap_or(self.outlooks.len());
        if known.is_none() {
            self.outlooks.push((models, Outlook::new(&self.typical, models)));
        }
        let free = node.free_gpus();
        Standing {
            version,
            outlook,
            free,
            firsts: node.firsts(node.gpus_that(|_| true)),
            blocks: self.blocks.value(free.len(), node.cpu_milli.free),
            uses: self.outlooks[outlook].1.node_use(catalog, node),
        }
    }

    /// The outlook of the node with these facts.
    pub(crate) fn outlook(&self, standing: &Standing) -> &Outlook {
        &self.outlooks[standing.outlook].1
    }
}
