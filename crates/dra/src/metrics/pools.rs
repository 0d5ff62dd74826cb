//! Metrics of published pools: slices, devices, unpublished devices, and errors.

use std::fmt;

use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use windlass_cluster::slices::PublishState;
use windlass_host::counters::Labels;

/// Metrics of published pools.
#[derive(Clone, Default)]
pub struct DraMetrics {
    slices: Family<Labels, Gauge>,
    devices: Family<Labels, Gauge>,
    generation: Family<Labels, Gauge>,
    omitted_devices: Gauge,
    dropped_fields: Family<Labels, Gauge>,
    errors: Counter,
}

// === impl DraMetrics ===

impl DraMetrics {
    /// Registers the metrics.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let help = "ResourceSlices that are published";
        registry.register("dra_slices", help, metrics.slices.clone());
        let help = "Devices in published ResourceSlices";
        registry.register("dra_devices", help, metrics.devices.clone());
        let help = "Generation of a published pool";
        registry.register("dra_pool_generation", help, metrics.generation.clone());
        let help = "Devices that are offered to claims, but cannot be published";
        registry.register("dra_devices_left_out", help, metrics.omitted_devices.clone());
        let help = "1 for a disabled feature gate whose fields the API server drops";
        registry.register("dra_dropped_fields", help, metrics.dropped_fields.clone());
        let help = "Failures and refusals while ResourceSlices were published";
        registry.register("dra_publish_errors", help, metrics.errors.clone());
        metrics
    }

    /// Sets the metrics to the state of the publication.
    pub(crate) fn update(&self, state: &PublishState) {
        let families = [&self.slices, &self.devices, &self.generation, &self.dropped_fields];
        families.into_iter().for_each(Family::clear);
        for (pool, published) in &state.pools {
            let pool = || vec![("pool", pool.clone())];
            let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
            self.slices.get_or_create_owned(&pool()).set(count(published.slices));
            self.devices.get_or_create_owned(&pool()).set(count(published.devices));
            self.generation.get_or_create_owned(&pool()).set(published.generation);
        }
        for dropped in &state.dropped_fields {
            let gate = dropped.gate().unwrap_or("unknown").to_owned();
            self.dropped_fields.get_or_create_owned(&vec![("gate", gate)]).set(1);
        }
        self.omitted_devices.set(i64::try_from(state.omitted.len()).unwrap_or(i64::MAX));
        self.errors.inc_by(state.error_count.saturating_sub(self.errors.get()));
    }
}

impl fmt::Debug for DraMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DraMetrics").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use windlass_cluster::slices::PublishedPool;

    use super::*;

    #[test]
    fn pools_that_are_gone_have_no_lines_and_errors_only_grow() {
        let mut registry = Registry::default();
        let metrics = DraMetrics::register(&mut registry);
        let pool = PublishedPool { generation: 3, slices: 1, devices: 8 };
        let mut state = PublishState { error_count: 2, ..PublishState::default() };
        state.pools.insert("n1/nvidia".to_owned(), pool);
        metrics.update(&state);
        let mut page = String::new();
        prometheus_client::encoding::text::encode(&mut page, &registry).expect("written");
        for line in [
            r#"dra_devices{pool="n1/nvidia"} 8"#,
            r#"dra_pool_generation{pool="n1/nvidia"} 3"#,
            "dra_devices_left_out 0",
            "dra_publish_errors_total 2",
        ] {
            assert!(page.contains(line), "{line}\n{page}");
        }
        metrics.update(&PublishState { error_count: 2, ..PublishState::default() });
        let mut page = String::new();
        prometheus_client::encoding::text::encode(&mut page, &registry).expect("written");
        assert!(!page.contains("n1/nvidia") && page.contains("errors_total 2"), "{page}");
    }
}
