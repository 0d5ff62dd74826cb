//! Counter family with one label.

use prometheus_client::registry::Registry;
use windlass_host::counters::{CounterFamily, Labels};

/// Counter family with one label; clones share it.
#[derive(Clone, Debug)]
pub(super) struct LabeledCounter {
    family: CounterFamily,
    label: &'static str,
}

// === impl LabeledCounter ===

impl LabeledCounter {
    /// Registers the counter, with 0 for each of these values of the label.
    pub(super) fn register(
        registry: &mut Registry,
        name: &'static str,
        help: &'static str,
        label: &'static str,
        values: &[&'static str],
    ) -> Self {
        let counter = Self { family: CounterFamily::default(), label };
        registry.register(name, help, counter.family.clone());
        for value in values {
            counter.family.get_or_create_owned(&counter.labels(value));
        }
        counter
    }

    /// Counts one.
    pub(super) fn inc(&self, value: &'static str) {
        self.family.get_or_create_owned(&self.labels(value)).inc();
    }

    fn labels(&self, value: &str) -> Labels {
        vec![(self.label, value.to_owned())]
    }
}
