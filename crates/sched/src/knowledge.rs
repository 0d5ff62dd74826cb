//! Everything that a policy knows of the requests to come, computed once per forecast.

use std::collections::HashMap;

use crate::{
    blocks::Blocks,
    forecast::{Forecast, Typical, typical},
    fragmentation::Outlook,
    gpu::ModelSet,
    prices::Prices,
    scarcity::Scarcity,
    stranding::Stranding,
    view::View,
};

/// The consequences of a forecast for a cluster.
#[derive(Debug, Default)]
pub struct Knowledge {
    typical: Vec<Typical>,
    outlooks: HashMap<ModelSet, Outlook>,
    /// Prices of fractions of a GPU.
    pub prices: Prices,
    /// CPU that GPUs need.
    pub stranding: Stranding,
    /// Demand for single products.
    pub scarcity: Scarcity,
    /// Demand for several GPUs of one node.
    pub blocks: Blocks,
}

impl Knowledge {
    /// Computes the consequences.
    pub fn of(forecast: &Forecast, view: &View) -> Self {
        let counts = forecast.counts(view);
        Self {
            typical: typical(&counts),
            outlooks: HashMap::new(),
            prices: Prices::of(&counts),
            stranding: Stranding::of(&counts),
            scarcity: Scarcity::of(&counts, view),
            blocks: Blocks::of(&counts),
        }
    }

    /// Prepares the outlook of nodes with these products.
    pub fn prepare(&mut self, models: ModelSet) {
        let typical = &self.typical;
        self.outlooks.entry(models).or_insert_with(|| Outlook::new(typical, models));
    }

    /// The outlook of nodes with these products, which was prepared.
    pub fn outlook(&self, models: ModelSet) -> &Outlook {
        self.outlooks.get(&models).expect("prepared before a node is ranked")
    }
}
