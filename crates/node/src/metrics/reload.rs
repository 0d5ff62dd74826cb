//! Metrics of configuration reloads.

use jiff::Timestamp;
use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge},
    registry::{Registry, Unit},
};
use windlass_host::counters::CounterFamily;

/// Reload metrics, named as Prometheus names those of its own reloads.
#[derive(Clone, Debug)]
pub(crate) struct ReloadMetrics {
    successful: Gauge,
    success_timestamp: Gauge,
    loaded: Counter,
    refused: Counter,
}

// === impl ReloadMetrics ===

impl ReloadMetrics {
    /// Registers the metrics; the initial configuration counts as loaded.
    pub(super) fn register(registry: &mut Registry, now: Timestamp) -> Self {
        let reloads = CounterFamily::default();
        let count =
            |result: &str| reloads.get_or_create_owned(&vec![("result", result.to_owned())]);
        let metrics = Self {
            successful: Gauge::default(),
            success_timestamp: Gauge::default(),
            loaded: count("loaded"),
            refused: count("refused"),
        };
        let help = "1 if the latest configuration is in force";
        registry.register("config_last_reload_successful", help, metrics.successful.clone());
        let help = "Load time of the configuration in force";
        let name = "config_last_reload_success_timestamp";
        registry.register_with_unit(name, help, Unit::Seconds, metrics.success_timestamp.clone());
        let help = "Configuration reloads, by outcome";
        registry.register("config_reloads", help, reloads);
        metrics.record_in_force(now);
        metrics
    }

    /// Records a valid configuration.
    pub(crate) fn record_loaded(&self, now: Timestamp) {
        self.loaded.inc();
        self.record_in_force(now);
    }

    /// Records an invalid configuration; the previous one stays in force.
    pub(crate) fn record_refused(&self) {
        self.refused.inc();
        self.successful.set(0);
    }

    fn record_in_force(&self, now: Timestamp) {
        self.successful.set(1);
        self.success_timestamp.set(now.as_second());
    }
}
