//! Arrival time of each resource at the kubelet. The demo waits for stable offers; that wait is not the agent's time.

use std::collections::BTreeMap;

use tokio::time::Instant;
use windlass_kubelet_sim::NodeStatus;

/// Capacity and allocatable count of each resource, with the time of the last change.
#[derive(Debug, Default)]
pub(super) struct Arrivals(BTreeMap<String, ((usize, usize), Instant)>);

// === impl Arrivals ===

impl Arrivals {
    pub(super) fn note(&mut self, node: &NodeStatus, now: Instant) {
        for (resource, status) in &node.resources {
            let counts = (status.capacity, status.allocatable);
            if self.0.get(resource).is_none_or(|(known, _)| *known != counts) {
                self.0.insert(resource.clone(), (counts, now));
            }
        }
    }

    /// Time of the last change of a resource.
    pub(super) fn since(&self, resource: &str) -> Option<Instant> {
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
    fn a_count_is_as_old_as_its_last_change() {
        let (mut arrivals, begun) = (Arrivals::default(), Instant::now());
        let at = |second| begun + Duration::from_secs(second);
        assert_eq!(arrivals.since("a/b"), None);
        for (second, allocatable, since) in [(1, 7, 1), (2, 8, 2), (3, 8, 2)] {
            arrivals.note(&node(allocatable), at(second));
            assert_eq!(arrivals.since("a/b"), Some(at(since)), "in second {second}");
        }
    }
}
