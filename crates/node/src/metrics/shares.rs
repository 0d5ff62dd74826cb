//! Metrics of shares by amounts.

use prometheus_client::registry::Registry;
use windlass_host::counters::{CounterFamily, Labels};

/// Counter of bound shares; clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct ShareMetrics(CounterFamily);

// === impl ShareMetrics ===

impl ShareMetrics {
    /// Registers the metric.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let help = "Shares bound to a GPU, by the choice of the GPU";
        registry.register("shares_bound", help, metrics.0.clone());
        for choice in ["decided", "corrected", "own"] {
            metrics.0.get_or_create_owned(&labels(choice));
        }
        metrics
    }

    /// Counts a share.
    pub(crate) fn bound(&self, choice: &'static str) {
        self.0.get_or_create_owned(&labels(choice)).inc();
    }
}

fn labels(choice: &'static str) -> Labels {
    vec![("choice", choice.to_owned())]
}
