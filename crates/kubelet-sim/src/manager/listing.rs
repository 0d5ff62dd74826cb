//! Device lists from plugins, the loss of a plugin, and the counts in the node's status.

use std::collections::BTreeMap;

use super::Manager;
use crate::device::{Device, DeviceIds};

impl Manager {
    /// Replaces the list of a resource. Returns the UIDs of the pods to sync: pods that hold a device
    /// whose health changed, or that the previous list lacked.
    ///
    /// Of a device listed twice, the last entry wins. But both entries count for the sets of ids, so an
    /// id can be healthy and unhealthy at once.
    pub(crate) fn set_devices(&mut self, resource: &str, devices: Vec<Device>) -> Vec<String> {
        let previous = self.devices.remove(resource).unwrap_or_default();
        let (mut healthy, mut unhealthy) = (DeviceIds::new(), DeviceIds::new());
        let mut listed = BTreeMap::new();
        let mut affected = DeviceIds::new();
        for device in devices {
            if previous.get(&device.id).is_none_or(|previous| previous.health != device.health) {
                affected.extend(self.holdings.holder(&device.id).map(str::to_owned));
            }
            let set = if device.is_healthy() { &mut healthy } else { &mut unhealthy };
            set.insert(device.id.clone());
            listed.insert(device.id.clone(), device);
        }
        self.devices.insert(resource.to_owned(), listed);
        self.healthy.insert(resource.to_owned(), healthy);
        self.unhealthy.insert(resource.to_owned(), unhealthy);
        self.status_only_capacities.remove(resource);
        affected.into_iter().collect()
    }

    /// Moves all healthy ids of a resource to the unhealthy ones. `devices` keeps the health that the
    /// plugin reported.
    pub(super) fn mark_unhealthy(&mut self, resource: &str) {
        let ids = self.healthy.get_mut(resource).map(std::mem::take).unwrap_or_default();
        self.unhealthy.entry(resource.to_owned()).or_default().extend(ids);
    }

    /// Healthy ids that are neither allocated nor chosen for an admission in progress.
    pub(super) fn available(&self, resource: &str) -> DeviceIds {
        let healthy = self.healthy.get(resource).into_iter().flatten();
        let in_use = self.allocated.get(resource);
        healthy.filter(|id| in_use.is_none_or(|in_use| !in_use.contains(*id))).cloned().collect()
    }

    /// True if the device manager allocates the resource: a plugin listed devices of it, the checkpoint
    /// names it, or devices of it are in use.
    pub(crate) fn is_known(&self, resource: &str) -> bool {
        self.healthy.contains_key(resource) || self.allocated.contains_key(resource)
    }

    /// True if a device of the resource has a NUMA node.
    pub(super) fn has_topology(&self, resource: &str) -> bool {
        let devices = self.devices.get(resource).into_iter().flat_map(BTreeMap::values);
        devices.into_iter().any(|device| !device.nodes().is_empty())
    }

    /// `(capacity, allocatable)` of every resource in the node's status.
    pub(crate) fn counts(&self) -> BTreeMap<String, (usize, usize)> {
        let mut counts = BTreeMap::<String, (usize, usize)>::new();
        for (resource, ids) in &self.healthy {
            counts.insert(resource.clone(), (ids.len(), ids.len()));
        }
        for (resource, ids) in &self.unhealthy {
            counts.entry(resource.clone()).or_default().0 += ids.len();
        }
        for (resource, capacity) in &self.status_only_capacities {
            counts.entry(resource.clone()).or_insert((*capacity, *capacity));
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::tests::{GPU, device, hold, ids, manager},
        *,
    };

    fn unhealthy(id: &str) -> Device {
        Device { health: "Unhealthy".to_owned(), ..device(id, &[]) }
    }

    fn check(devices: Vec<Device>, expected: (usize, usize)) {
        assert_eq!(manager(devices).counts()[GPU], expected);
    }

    #[test]
    fn capacity_counts_all_devices_and_allocatable_the_healthy_ones() {
        let healthy = |id| device(id, &[]);
        check(vec![healthy("a"), healthy("b"), unhealthy("c")], (3, 2));
        check(vec![healthy("a"), healthy("b")], (2, 2));
        check(vec![], (0, 0));
    }

    #[test]
    fn only_the_exact_word_healthy_makes_a_device_healthy() {
        for word in ["healthy", "", "HEALTHY", "Unknown"] {
            check(vec![Device { health: word.to_owned(), ..device("a", &[]) }], (1, 0));
        }
    }

    #[test]
    fn a_duplicate_id_counts_in_both_sets_and_the_last_entry_wins() {
        let manager = manager(vec![device("a", &[]), unhealthy("a"), device("b", &[])]);
        assert_eq!(manager.counts()[GPU], (3, 2));
        assert_eq!(manager.devices[GPU]["a"].health, "Unhealthy");
    }

    #[test]
    fn a_new_list_replaces_the_old_one() {
        let mut manager = manager(vec![device("a", &[]), device("b", &[])]);
        manager.set_devices(GPU, vec![device("c", &[])]);
        assert_eq!(manager.healthy[GPU], ids("c"));
        assert_eq!(manager.devices[GPU].len(), 1);
    }

    #[test]
    fn a_holder_is_synced_when_its_device_changes_health_or_is_listed_again_not_when_it_goes() {
        let mut manager = manager(vec![device("a", &[]), device("b", &[])]);
        hold(&mut manager, "pod", "c", "a");
        let none: [&str; 0] = [];
        assert_eq!(manager.set_devices(GPU, vec![device("a", &[]), unhealthy("b")]), none);
        assert_eq!(manager.set_devices(GPU, vec![unhealthy("a")]), ["pod"]);
        assert_eq!(manager.set_devices(GPU, vec![]), none);
        assert_eq!(manager.set_devices(GPU, vec![unhealthy("a")]), ["pod"]);
    }
}
