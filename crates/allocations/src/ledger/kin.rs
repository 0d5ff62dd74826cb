//! What is of one silicon: a whole and its parts, and one thing that two sources found.
//!
//! Two devices that lie side by side in one whole are no kin of each other. A place for a MIG instance is a
//! part too, whether one stands there or not: it is kin of whatever cannot stand beside it.

use std::{
    collections::{BTreeMap, BTreeSet},
    iter,
    sync::Arc,
};

use windlass_core::{
    device::{Device, DeviceId, PossiblePartition, Room},
    inventory::Inventory,
};

use crate::rivals::rival_pairs;

/// A device and what is of the same silicon: its whole, its parts, and itself as another source found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footprint {
    pub(crate) device: DeviceId,
    /// Not copied for each Allocate: a GPU that can be cut has every place for a partition among its kin.
    pub(crate) kin: Arc<BTreeSet<DeviceId>>,
}

/// The kin of every device of a node that has some.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kinship(BTreeMap<DeviceId, Arc<BTreeSet<DeviceId>>>);

// === impl Footprint ===

impl Footprint {
    pub(super) fn all(&self) -> impl Iterator<Item = &DeviceId> {
        iter::once(&self.device).chain(&*self.kin)
    }
}

// === impl Kinship ===

impl Kinship {
    /// All that is kin in an inventory. What has vanished is in somebody's hands still, if it was before.
    pub fn of(inventory: &Inventory) -> Self {
        let mut kinship = Self::default();
        let parts = inventory.devices.iter();
        for (part, whole) in parts.filter_map(|part| Some((&part.id, part.parent.as_ref()?))) {
            kinship.join(part, whole);
        }
        for (one, other) in rival_pairs(&inventory.devices) {
            kinship.join(&one.id, &other.id);
        }
        for gpu in inventory.devices.iter().filter(|device| !device.partitions.is_empty()) {
            kinship.join_places(gpu, inventory);
        }
        kinship
    }

    /// The places of a GPU, with each other and with what stands there.
    fn join_places(&mut self, gpu: &Device, inventory: &Inventory) {
        let (all, room) = (&*gpu.partitions, Room::of(&gpu.partitions));
        let places: Vec<_> = all.iter().map(|it| (it, it.partition.id())).collect();
        for (_, place) in &places {
            self.join(place, &gpu.id);
        }
        for [one, other] in room.rivals(all) {
            self.join(&places[one].1, &places[other].1);
        }
        for part in inventory.parts_of(&gpu.id) {
            let Some(stands) = &part.partition else { continue };
            let is_taken = |it: &PossiblePartition| it.partition.takes_from(stands, &room, all);
            for (_, place) in places.iter().filter(|(it, _)| is_taken(it)) {
                self.join(place, &part.id);
            }
        }
    }

    /// All that is of the same silicon as a device.
    pub fn footprint(&self, device: &DeviceId) -> Footprint {
        let kin = self.0.get(device).cloned().unwrap_or_default();
        Footprint { device: device.clone(), kin }
    }

    fn join(&mut self, one: &DeviceId, other: &DeviceId) {
        for (of, is) in [(one, other), (other, one)] {
            Arc::make_mut(self.0.entry(of.clone()).or_default()).insert(is.clone());
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
        let new = Device::new(id, DeviceKind::Other, source, Timestamp::UNIX_EPOCH);
        Device { parent: parent.map(|id| id.parse().expect("an id")), ..new }
    }

    fn kin(devices: &[Device], of: usize) -> Vec<String> {
        let inventory = Inventory { devices: devices.to_vec(), ..Inventory::default() };
        let footprint = Kinship::of(&inventory).footprint(&devices[of].id);
        footprint.kin.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_whole_is_kin_of_its_parts_which_are_no_kin_of_each_other() {
        let all = [
            device("gpu", "nvidia", None),
            device("one", "nvidia", Some("gpu")),
            device("two", "nvidia", Some("gpu")),
        ];
        assert_eq!(kin(&all, 0), ["one", "two"]);
        assert_eq!(kin(&all, 1), ["gpu"]);
    }

    #[test]
    fn one_thing_that_two_sources_found_is_kin_of_itself() {
        let with_node =
            |device: Device| Device { nodes: vec![DeviceNode::new("/dev/x")], ..device };
        let all = [device("a", "one", None), device("b", "two", None), device("c", "two", None)];
        let [a, b, c] = all;
        let all = [with_node(a), with_node(b), c];
        assert_eq!(kin(&all, 0), ["b"]);
        assert_eq!(kin(&all, 1), ["a"]);
        assert_eq!(kin(&all, 2), [""; 0]);
    }
}
