//! Metrics of shares by amounts.

use prometheus_client::registry::Registry;

use super::labeled_counter::LabeledCounter;

/// Counter of bound shares; clones share it.
#[derive(Clone, Debug)]
pub(crate) struct ShareMetrics(LabeledCounter);

// === impl ShareMetrics ===

impl ShareMetrics {
    /// Registers the metric.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let help = "Shares bound to a GPU, by the choice of the GPU";
        let choices = ["decided", "corrected", "own"];
        Self(LabeledCounter::register(registry, "shares_bound", help, "choice", &choices))
    }

    /// Counts a share.
    pub(crate) fn count_bound(&self, choice: &'static str) {
        self.0.inc(choice);
    }
}
