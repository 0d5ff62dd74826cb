//! Placement counters: exact, best-effort and refused choices.

use prometheus_client::{metrics::counter::Counter, registry::Registry};
use windlass_core::resource::ResourceName;
use windlass_host::counters::CounterFamily;

/// Counters of one resource.
#[derive(Clone, Debug)]
pub(crate) struct PlacementMetrics {
    exact: Counter,
    best_effort: Counter,
    refused: Counter,
}

/// Counter families of all resources.
#[derive(Clone, Debug)]
pub(super) struct PlacementFamilies {
    choices: CounterFamily,
    refusals: CounterFamily,
}

// === impl PlacementFamilies ===

impl PlacementFamilies {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let (choices, refusals) = (CounterFamily::default(), CounterFamily::default());
        let help = "Placement choices; exact=true if proven optimal";
        registry.register("placement_choices", help, choices.clone());
        let help = "Placement requests without a valid choice";
        registry.register("placement_refusals", help, refusals.clone());
        Self { choices, refusals }
    }

    pub(super) fn for_resource(&self, resource: &ResourceName) -> PlacementMetrics {
        let resource = ("resource", resource.to_string());
        let choices = |exact: &str| {
            let labels = vec![("exact", exact.to_owned()), resource.clone()];
            self.choices.get_or_create_owned(&labels)
        };
        PlacementMetrics {
            exact: choices("true"),
            best_effort: choices("false"),
            refused: self.refusals.get_or_create_owned(&vec![resource.clone()]),
        }
    }
}

// === impl PlacementMetrics ===

impl PlacementMetrics {
    /// Counts a choice; `exact` if the search proved it optimal.
    pub(crate) fn count_choice(&self, exact: bool) {
        let counter = if exact { &self.exact } else { &self.best_effort };
        counter.inc();
    }

    /// Counts a request without a valid choice.
    pub(crate) fn count_refusal(&self) {
        self.refused.inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_and_best_effort_choices_are_counted_apart_from_zero() {
        let mut registry = Registry::default();
        let families = PlacementFamilies::register(&mut registry);
        let metrics = families.for_resource(&"nvidia.com/gpu".parse().expect("valid"));
        let page = || {
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, &registry).expect("written");
            text
        };
        let check = |exact: u32, best_effort: u32, refused: u32| {
            let page = page();
            for line in [
                format!(r#"choices_total{{exact="true",resource="nvidia.com/gpu"}} {exact}"#),
                format!(
                    r#"choices_total{{exact="false",resource="nvidia.com/gpu"}} {best_effort}"#
                ),
                format!(r#"refusals_total{{resource="nvidia.com/gpu"}} {refused}"#),
            ] {
                assert!(page.contains(&line), "{line}\n{page}");
            }
        };
        check(0, 0, 0);
        metrics.count_choice(true);
        metrics.count_choice(true);
        metrics.count_choice(false);
        metrics.count_refusal();
        check(2, 1, 1);
    }
}
