//! Device lists from plugins, and a resource's devices after its plugin is lost.

use std::collections::BTreeMap;

use super::Manager;
use crate::device::{Device, DeviceIds};

impl Manager {
    /// Takes a list as the complete state of a resource. Returns the pods to sync at once: a device
    /// of theirs changed its health or reappeared.
    ///
    /// A device listed twice has its last record's fields, and both records count. So an id can be
    /// healthy and unhealthy at once.
    pub(crate) fn list(&mut self, resource: &str, devices: Vec<Device>) -> Vec<String> {
        let old = self.devices.remove(resource).unwrap_or_default();
        let (mut healthy, mut unhealthy) = (DeviceIds::new(), DeviceIds::new());
        let mut listed = BTreeMap::new();
        let mut affected = DeviceIds::new();
        for device in devices {
            if old.get(&device.id).is_none_or(|old| old.health != device.health) {
                affected.extend(self.holdings.holder(&device.id).map(str::to_owned));
            }
            let set = if device.is_healthy() { &mut healthy } else { &mut unhealthy };
            set.insert(device.id.clone());
            listed.insert(device.id.clone(), device);
        }
        self.devices.insert(resource.to_owned(), listed);
        self.healthy.insert(resource.to_owned(), healthy);
        self.unhealthy.insert(resource.to_owned(), unhealthy);
        self.left_over.remove(resource);
        affected.into_iter().collect()
    }

    /// Moves all healthy ids to unhealthy. The health of each device stays as the plugin reported it.
    pub(super) fn mark_unhealthy(&mut self, resource: &str) {
        let lost = self.healthy.get_mut(resource).map(std::mem::take).unwrap_or_default();
        self.unhealthy.entry(resource.to_owned()).or_default().extend(lost);
    }

    /// Healthy ids that are neither allocated nor chosen for an admission in progress.
    pub(super) fn available(&self, resource: &str) -> DeviceIds {
        let healthy = self.healthy.get(resource).into_iter().flatten();
        let in_use = self.allocated.get(resource);
        healthy.filter(|id| in_use.is_none_or(|used| !used.contains(*id))).cloned().collect()
    }

    /// True if the device manager handles the resource: a plugin listed it, or a container holds it.
    pub(crate) fn is_known(&self, resource: &str) -> bool {
        self.healthy.contains_key(resource) || self.allocated.contains_key(resource)
    }

    /// True if a device of the resource has a NUMA node.
    pub(super) fn has_topology(&self, resource: &str) -> bool {
        let devices = self.devices.get(resource).into_iter().flat_map(BTreeMap::values);
        devices.into_iter().any(|device| !device.nodes().is_empty())
    }

    /// Capacity and allocatable of every resource on the node.
    pub(crate) fn counts(&self) -> BTreeMap<String, (usize, usize)> {
        let mut counts = BTreeMap::<String, (usize, usize)>::new();
        for (resource, ids) in &self.healthy {
            counts.insert(resource.clone(), (ids.len(), ids.len()));
        }
        for (resource, ids) in &self.unhealthy {
            counts.entry(resource.clone()).or_default().0 += ids.len();
        }
        for (resource, capacity) in &self.left_over {
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

    fn sick(id: &str) -> Device {
        Device { health: "Unhealthy".to_owned(), ..device(id, &[]) }
    }

    fn check(devices: Vec<Device>, expected: (usize, usize)) {
        assert_eq!(manager(devices).counts()[GPU], expected);
    }

    #[test]
    fn capacity_counts_all_devices_and_allocatable_the_healthy_ones() {
        let healthy = |id| device(id, &[]);
        check(vec![healthy("a"), healthy("b"), sick("c")], (3, 2));
        check(vec![healthy("a"), healthy("b")], (2, 2));
        check(vec![], (0, 0));
    }

    #[test]
    fn only_the_exact_word_is_healthy() {
        for word in ["healthy", "", "HEALTHY", "Unknown"] {
            check(vec![Device { health: word.to_owned(), ..device("a", &[]) }], (1, 0));
        }
    }

    #[test]
    fn a_duplicate_id_counts_in_both_sets_and_the_last_record_wins() {
        let manager = manager(vec![device("a", &[]), sick("a"), device("b", &[])]);
        assert_eq!(manager.counts()[GPU], (3, 2));
        assert_eq!(manager.devices[GPU]["a"].health, "Unhealthy");
    }

    #[test]
    fn a_new_list_replaces_the_old_one() {
        let mut manager = manager(vec![device("a", &[]), device("b", &[])]);
        manager.list(GPU, vec![device("c", &[])]);
        assert_eq!(manager.healthy[GPU], ids("c"));
        assert_eq!(manager.devices[GPU].len(), 1);
    }

    #[test]
    fn a_holder_is_synced_when_its_device_changes_health_or_reappears_but_not_when_it_goes() {
        let mut manager = manager(vec![device("a", &[]), device("b", &[])]);
        hold(&mut manager, "pod", "c", "a");
        let none: [&str; 0] = [];
        assert_eq!(manager.list(GPU, vec![device("a", &[]), sick("b")]), none);
        assert_eq!(manager.list(GPU, vec![sick("a")]), ["pod"]);
        assert_eq!(manager.list(GPU, vec![]), none);
        assert_eq!(manager.list(GPU, vec![sick("a")]), ["pod"]);
    }
}
