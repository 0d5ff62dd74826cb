//! Everything that a policy knows of the requests to come, computed once per forecast, and of each node by it.

use crate::{
    blocks::Blocks,
    forecast::{Forecast, Typical, typical},
    fragmentation::{NodeUse, Outlook},
    gpu::{GpuSet, ModelSet},
    node::Node,
    prices::Prices,
    scarcity::Scarcity,
    stranding::Stranding,
    view::{Catalog, View},
};

/// The consequences of a forecast for a cluster.
#[derive(Debug, Default)]
pub struct Knowledge {
    typical: Vec<Typical>,
    outlooks: Vec<(ModelSet, Outlook)>,
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
    outlook: usize,
    /// GPUs that nobody has any of.
    pub(crate) free: GpuSet,
    /// The first GPU of each state, which stands for all.
    pub(crate) firsts: GpuSet,
    /// Value of the blocks of free GPUs.
    pub(crate) blocks: f64,
    /// Free main memory.
    pub(crate) memory_mib: u32,
    /// Use of the GPUs by typical requests.
    pub(crate) uses: NodeUse,
}

impl Knowledge {
    /// Computes the consequences.
    pub fn of(forecast: &Forecast, view: &View) -> Self {
        let counts = forecast.counts(view);
        Self {
            typical: typical(&counts),
            outlooks: Vec::new(),
            prices: Prices::of(&counts),
            stranding: Stranding::of(&counts),
            scarcity: Scarcity::of(&counts, view),
            blocks: Blocks::of(&counts),
        }
    }

    /// Computes the facts of a node.
    pub(crate) fn standing(&mut self, catalog: &Catalog, node: &Node) -> Standing {
        let models = node.models();
        let known = self.outlooks.iter().position(|(other, _)| *other == models);
        let outlook = known.unwrap_or(self.outlooks.len());
        if known.is_none() {
            self.outlooks.push((models, Outlook::new(&self.typical, models)));
        }
        let uses = self.outlooks[outlook].1.node_use(catalog, node);
        let free = node.free_gpus();
        Standing {
            outlook,
            free,
            firsts: node.firsts(node.gpus_that(|_| true)),
            blocks: self.blocks.value(free.len(), node.cpu_milli.free),
            memory_mib: node.memory_mib.free,
            uses,
        }
    }

    /// The outlook of the node with these facts.
    pub(crate) fn outlook(&self, standing: &Standing) -> &Outlook {
        &self.outlooks[standing.outlook].1
    }
}
