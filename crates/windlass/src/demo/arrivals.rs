//! Time at which each resource arrived at the kubelet, without the demo's later wait for stable offers.

use std::collections::BTreeMap;

use tokio::time::Instant;
use windlass_kubelet_sim::NodeStatus;

/// Capacity and allocatable count of each resource, with the time of the last change.
#[derive(Debug, Default)]
pub(super) struct Arrivals(BTreeMap<String, ((usize, usize), Instant)>);

// === impl Arrivals ===

impl Arrivals {
    pub(super) fn observe(&mut self, node: &NodeStatus, now: Instant) {
        for (resource, status) in &node.resources {
            let counts = (status.capacity, status.allocatable);
            if self.0.get(resource).is_none_or(|(previous, _)| *previous != counts) {
                self.0.insert(resource.clone(), (counts, now));
            }
        }
    }

    /// Time of the last change of a resource.
    pub(super) fn last_change(&self, resource: &str) -> Option<Instant> {
        self.0.get(resource).map(|(_, since)| *since)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use windlass_kubelet_sim::ResourceStatus;

    use super::*;

    fn node(allocatable: usize) -> NodeStatus {
        let status = ResourceStatus { capacity: 8, allocatable, ..ResourceStatus::default() };
        NodeStatus { resources: [("a/b".to_owned(), status)].into(), ..NodeStatus::default() }
    }

    #[test]
    fn a_resource_arrived_at_its_last_change() {
        let (mut arrivals, start) = (Arrivals::default(), Instant::now());
        let at = |second| start + Duration::from_secs(second);
        assert_eq!(arrivals.last_change("a/b"), None);
        for (second, allocatable, last_change) in [(1, 7, 1), (2, 8, 2), (3, 8, 2)] {
            arrivals.observe(&node(allocatable), at(second));
            assert_eq!(arrivals.last_change("a/b"), Some(at(last_change)), "in second {second}");
        }
    }
}
