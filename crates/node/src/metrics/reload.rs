//! Whether the configuration that was last read is the one in force.

use jiff::Timestamp;
use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge},
    registry::{Registry, Unit},
};
use windlass_host::counters::CounterFamily;

/// What whoever reads the configuration again counts with. The names are those that Prometheus has
/// for its own reloads.
#[derive(Clone, Debug)]
pub(crate) struct ReloadMetrics {
    successful: Gauge,
    at: Gauge,
    loaded: Counter,
    refused: Counter,
}

// === impl ReloadMetrics ===

impl ReloadMetrics {
    /// The configuration that the agent starts with counts as read.
    pub(super) fn register(registry: &mut Registry, now: Timestamp) -> Self {
        let reloads = CounterFamily::default();
        let count =
            |result: &str| reloads.get_or_create_owned(&vec![("result", result.to_owned())]);
        let metrics = Self {
            successful: Gauge::default(),
            at: Gauge::default(),
            loaded: count("loaded"),
            refused: count("refused"),
        };
        let help = "Whether the configuration that was read last is in force";
        registry.register("config_last_reload_successful", help, metrics.successful.clone());
        let (help, at) = ("When the configuration in force was read", metrics.at.clone());
        let name = "config_last_reload_success_timestamp";
        registry.register_with_unit(name, help, Unit::Seconds, at);
        let help = "Configurations that were read again, by outcome";
        registry.register("config_reloads", help, reloads);
        metrics.in_force(now);
        metrics
    }

    /// A new configuration is in force.
    pub(crate) fn loaded(&self, now: Timestamp) {
        self.loaded.inc();
        self.in_force(now);
    }

    /// A new configuration is wrong; the one before it stays in force.
    pub(crate) fn refused(&self) {
        self.refused.inc();
        self.successful.set(0);
    }

    fn in_force(&self, now: Timestamp) {
        self.successful.set(1);
        self.at.set(now.as_second());
    }
}
