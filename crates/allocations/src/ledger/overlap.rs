//! Overlap of devices that share hardware: a parent and its parts, or one device that two sources found.
//!
//! Two parts of one parent do not overlap. A possible MIG placement is a part too, even without an instance: it
//! overlaps every placement that cannot exist beside it.

use std::{
    collections::{BTreeMap, BTreeSet},
    iter,
    sync::Arc,
};

use windlass_core::{
    device::{Device, DeviceId, PartitionCapacity, PossiblePartition},
    inventory::Inventory,
};

use crate::duplicates::duplicate_pairs;

/// A device and every device that shares hardware with it: parent, parts, and the same hardware under
/// another source's id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overlap {
    pub(crate) device: DeviceId,
    /// Shared, not cloned per Allocate: a MIG-capable GPU overlaps every possible placement on it.
    pub(crate) overlapping: Arc<BTreeSet<DeviceId>>,
}

/// Overlapping devices of each device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overlaps(BTreeMap<DeviceId, Arc<BTreeSet<DeviceId>>>);

// === impl Overlap ===

impl Overlap {
    pub(super) fn all(&self) -> impl Iterator<Item = &DeviceId> {
        iter::once(&self.device).chain(&*self.overlapping)
    }
}

// === impl Overlaps ===

impl Overlaps {
    /// All overlaps in an inventory. Vanished devices count: a container may hold them.
    pub fn from_inventory(inventory: &Inventory) -> Self {
        let mut overlaps = Self::default();
        for part in &inventory.devices {
            if let Some(parent) = &part.parent {
                overlaps.join(&part.id, parent);
            }
        }
        for (one, other) in duplicate_pairs(&inventory.devices) {
            overlaps.join(&one.id, &other.id);
        }
        for gpu in inventory.devices.iter().filter(|device| !device.partitions.is_empty()) {
            overlaps.join_placements(gpu, inventory);
        }
        overlaps
    }

    /// Joins the GPU's possible placements with the GPU, with each other, and with the present instances.
    fn join_placements(&mut self, gpu: &Device, inventory: &Inventory) {
        let (partitions, capacity) =
            (&*gpu.partitions, PartitionCapacity::from_partitions(&gpu.partitions));
        let placements: Vec<_> =
            partitions.iter().map(|possible| (possible, possible.partition.id())).collect();
        for (_, placement) in &placements {
            self.join(placement, &gpu.id);
        }
        for [first, second] in capacity.exclusions(partitions) {
            self.join(&placements[first].1, &placements[second].1);
        }
        for part in inventory.parts_of(&gpu.id) {
            let Some(instance) = &part.partition else { continue };
            let conflicts = |possible: &PossiblePartition| {
                possible.partition.conflicts_with(instance, &capacity, partitions)
            };
            for (_, placement) in placements.iter().filter(|(possible, _)| conflicts(possible)) {
                self.join(placement, &part.id);
            }
        }
    }

    /// A device with the devices that overlap it.
    pub fn overlap(&self, device: &DeviceId) -> Overlap {
        let overlapping = self.0.get(device).cloned().unwrap_or_default();
        Overlap { device: device.clone(), overlapping }
    }

    fn join(&mut self, first: &DeviceId, second: &DeviceId) {
        for (device, overlapping) in [(first, second), (second, first)] {
            Arc::make_mut(self.0.entry(device.clone()).or_default()).insert(overlapping.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use windlass_core::device::{Device, DeviceKind, DeviceNode};

    use super::*;

    fn device(id: &str, source: &str, parent: Option<&str>) -> Device {
        let (id, source) = (id.parse().expect("an id"), source.parse().expect("a source"));
        let device = Device::new(id, DeviceKind::Other, source, Timestamp::UNIX_EPOCH);
        Device { parent: parent.map(|id| id.parse().expect("an id")), ..device }
    }

    fn overlapping(devices: &[Device], index: usize) -> Vec<String> {
        let inventory = Inventory { devices: devices.to_vec(), ..Inventory::default() };
        let overlap = Overlaps::from_inventory(&inventory).overlap(&devices[index].id);
        overlap.overlapping.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_parent_overlaps_its_parts_which_do_not_overlap_each_other() {
        let devices = [
            device("gpu", "nvidia", None),
            device("one", "nvidia", Some("gpu")),
            device("two", "nvidia", Some("gpu")),
        ];
        assert_eq!(overlapping(&devices, 0), ["one", "two"]);
        assert_eq!(overlapping(&devices, 1), ["gpu"]);
    }

    #[test]
    fn duplicates_of_two_sources_overlap() {
        let with_node =
            |device: Device| Device { nodes: vec![DeviceNode::new("/dev/x")], ..device };
        let devices =
            [device("a", "one", None), device("b", "two", None), device("c", "two", None)];
        let [a, b, c] = devices;
        let devices = [with_node(a), with_node(b), c];
        assert_eq!(overlapping(&devices, 0), ["b"]);
        assert_eq!(overlapping(&devices, 1), ["a"]);
        assert_eq!(overlapping(&devices, 2), [""; 0]);
    }
}
