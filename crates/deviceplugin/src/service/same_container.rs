//! Guess of the devices that the same container got from other resources.
//!
//! The kubelet allocates one resource after another, in any order, and does not name the container. Allocations within
//! [`GROUP_WINDOW`] count as one container's until a resource repeats: a container requests each resource once.
//!
//! Placement uses the guess as a preference only.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;
use windlass_core::{device::DeviceId, resource::ResourceName};

/// Devices that probably belong to one container.
#[derive(Clone, Debug, Default)]
pub(crate) struct AllocationGroup {
    devices: BTreeMap<ResourceName, Vec<DeviceId>>,
    last_allocation: Option<Instant>,
}

/// Longest time between two allocations of one container. Resources of one admission follow within milliseconds, and
/// unrelated pods usually later.
const GROUP_WINDOW: Duration = Duration::from_secs(1);

// === impl AllocationGroup ===

impl AllocationGroup {
    /// Devices of other resources, for a container that now requests this one.
    pub(super) fn other_devices(
        &self,
        resource: &ResourceName,
        now: Instant,
    ) -> impl Iterator<Item = &DeviceId> {
        let is_same_container = self.is_joined_by(resource, now);
        self.devices.values().filter(move |_| is_same_container).flatten()
    }

    pub(super) fn record(&mut self, resource: &ResourceName, devices: Vec<DeviceId>, now: Instant) {
        if !self.is_joined_by(resource, now) {
            self.devices.clear();
        }
        self.devices.insert(resource.clone(), devices);
        self.last_allocation = Some(now);
    }

    fn is_joined_by(&self, resource: &ResourceName, now: Instant) -> bool {
        let is_recent =
            self.last_allocation.is_some_and(|last| now.duration_since(last) < GROUP_WINDOW);
        is_recent && !self.devices.contains_key(resource)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> ResourceName {
        text.parse().expect("valid")
    }

    fn other_ids(group: &AllocationGroup, resource: &str, now: Instant) -> Vec<String> {
        group.other_devices(&name(resource), now).map(ToString::to_string).collect()
    }

    #[test]
    fn a_repeated_resource_starts_another_container() {
        let (mut group, start) = (AllocationGroup::default(), Instant::now());
        let ids = |id: &str| vec![id.parse().expect("valid")];
        assert!(other_ids(&group, "a/nic", start).is_empty());
        group.record(&name("a/gpu"), ids("GPU-3"), start);
        assert_eq!(other_ids(&group, "a/nic", start), ["GPU-3"]);
        assert!(other_ids(&group, "a/gpu", start).is_empty(), "the next container's");
        group.record(&name("a/nic"), ids("nic-3"), start);
        assert_eq!(other_ids(&group, "a/fpga", start), ["GPU-3", "nic-3"]);
        group.record(&name("a/gpu"), ids("GPU-4"), start);
        assert_eq!(
            other_ids(&group, "a/nic", start),
            ["GPU-4"],
            "without the earlier container's GPU"
        );
    }

    #[test]
    fn an_allocation_after_the_window_starts_another_container() {
        let (mut group, start) = (AllocationGroup::default(), Instant::now());
        group.record(&name("a/gpu"), vec!["GPU-3".parse().expect("valid")], start);
        assert!(other_ids(&group, "a/nic", start + GROUP_WINDOW).is_empty());
        group.record(&name("a/nic"), Vec::new(), start + GROUP_WINDOW);
        assert!(other_ids(&group, "a/fpga", start + GROUP_WINDOW).is_empty());
    }
}
