//! What tells that two ids stand for the same thing, in whole or in part: a node, a PCI function, a place.
//!
//! Ids change while containers run: a mode cuts devices in another way, a source gets another name, of two
//! USB devices with one serial number the other came first. What a container holds under the old id is not
//! to be given away under the new one, so it is noted what each id stood for when it was given away.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use windlass_allocations::{
    Held,
    rivals::{Thing, is_part, own_nodes},
};
use windlass_core::{
    device::{Device, DeviceId, SourceName},
    inventory::Inventory,
    replica::device_of,
};

use super::Plan;

/// What each id stood for when it was given away.
pub type Marked = BTreeMap<DeviceId, Marks>;

/// What a device was, whatever its id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Marks {
    source: SourceName,
    things: BTreeSet<Thing>,
    /// The device that it was a part of.
    whole: Option<DeviceId>,
    /// Whether it was its nodes, and no more of a PCI function than these.
    part: bool,
}

/// What is there now, by what it is known by.
struct Present<'a> {
    marks: BTreeMap<&'a DeviceId, Marks>,
    inventory: &'a Inventory,
}

/// Notes what was given away, as it is now. Of an id that a container may hold from before, what it was
/// stays noted beside what it is: while a plan waits it is not known who holds what, and every id may be held.
pub fn note(marked: &mut Marked, plan: &Plan, inventory: &Inventory, held: &Held) {
    let held: BTreeSet<_> = held.values().flatten().filter_map(|id| device_of(id)).collect();
    let is_kept = |id: &DeviceId| plan.waiting || held.contains(id);
    let given: BTreeSet<DeviceId> = plan.offers.values().flat_map(|offer| offer.given()).collect();
    let is_there = |device: &&Device| !device.health.has_vanished() && given.contains(&device.id);
    for device in inventory.devices.iter().filter(is_there) {
        let mut now = Marks::of(device);
        if let Some(before) = marked.get(&device.id).filter(|_| is_kept(&device.id)) {
            now.things.extend(before.things.iter().cloned());
        }
        if marked.get(&device.id) != Some(&now) {
            marked.insert(device.id.clone(), now);
        }
    }
}

/// The other ids that stood for each device, or for a part of it, and do not say so themselves: what is
/// there is asked for its whole and its parts directly.
pub fn earlier_ids(
    marked: &Marked,
    inventory: &Inventory,
) -> BTreeMap<DeviceId, BTreeSet<DeviceId>> {
    Present::new(inventory).earlier_ids(marked)
}

/// Whether a device by now is, or has a part of, what another id stands for, and was not before, or no
/// longer has it beside the other: what the other leaves may be in a container's hands.
pub fn reveals(marked: &Marked, before: &Inventory, now: &Inventory) -> bool {
    if before.devices == now.devices {
        return false;
    }
    let (then, now) = (Present::new(before), Present::new(now));
    let known = then.earlier_ids(marked);
    let is_as_before = |id: &DeviceId| then.marks.get(id) == now.marks.get(id);
    let is_known = |(id, ids): (&DeviceId, &BTreeSet<DeviceId>)| {
        known.get(id).is_some_and(|known| ids.is_subset(known)) && ids.iter().all(is_as_before)
    };
    !now.earlier_ids(marked).iter().all(is_known)
}

// === impl Marks ===

impl Marks {
    fn of(device: &Device) -> Self {
        let nodes: BTreeSet<_> = own_nodes(device).collect();
        // What all nodes are shared of is no one's alone.
        let is_own = device.nodes.is_empty() || !nodes.is_empty();
        let place = device.origin.clone().filter(|_| is_own).map(Thing::Place);
        let function = device.place.pci.map(Thing::Function);
        Self {
            source: device.source.clone(),
            things: nodes.into_iter().chain(function).chain(place).collect(),
            whole: device.parent.clone(),
            part: is_part(device),
        }
    }

    fn has_nodes(&self) -> bool {
        self.things.iter().any(|thing| matches!(thing, Thing::Node(_) | Thing::IommuGroup(_)))
    }

    fn is_place(&self) -> bool {
        self.things.iter().all(|thing| matches!(thing, Thing::Place(_)))
    }

    /// Whether two of one PCI function are told apart by their nodes.
    fn is_beside(&self, other: &Self) -> bool {
        if self.source == other.source {
            self.has_nodes() && other.has_nodes()
        } else {
            self.part && other.part
        }
    }
}

// === impl Present ===

impl<'a> Present<'a> {
    fn new(inventory: &'a Inventory) -> Self {
        let devices = inventory.devices.iter().filter(|device| !device.health.has_vanished());
        Self { marks: devices.map(|device| (&device.id, Marks::of(device))).collect(), inventory }
    }

    fn earlier_ids(&self, marked: &Marked) -> BTreeMap<DeviceId, BTreeSet<DeviceId>> {
        let by_thing = self.by_thing();
        let mut earlier: BTreeMap<DeviceId, BTreeSet<DeviceId>> = BTreeMap::new();
        for (id, was) in marked {
            let same = was.things.iter().flat_map(|thing| {
                let there = by_thing.get(thing).into_iter().flatten();
                there.filter(|other| self.takes(thing, (id, was), other)).copied()
            });
            for other in same.chain(self.kin(id, was)).filter(|other| *other != id) {
                earlier.entry(other.clone()).or_default().insert(id.clone());
            }
        }
        earlier
    }

    fn by_thing(&self) -> BTreeMap<&Thing, Vec<&'a DeviceId>> {
        let mut all: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (id, marks) in &self.marks {
            marks.things.iter().for_each(|thing| all.entry(thing).or_default().push(*id));
        }
        all
    }

    /// Whether another device has a thing in place of the id that had it, or beside it though it is of
    /// another source. Two of one source that both have it are that source's business.
    fn takes(&self, thing: &Thing, (id, was): (&DeviceId, &Marks), other: &DeviceId) -> bool {
        let (now, other) = (self.marks.get(id), &self.marks[other]);
        let has_it_still =
            now.is_some_and(|now| now.source == other.source && now.things.contains(thing));
        match thing {
            Thing::Node(_) => !has_it_still,
            Thing::IommuGroup(_) => true,
            Thing::Function(_) => !has_it_still && !was.is_beside(other),
            // Sources may find different things in one place, as long as both are there and have more.
            Thing::Place(_) if now.is_none() => true,
            Thing::Place(_) => !has_it_still && was.is_place() && other.is_place(),
        }
    }

    /// The whole of a part that is gone, and the other parts, as far as they are there.
    fn kin(&self, id: &DeviceId, was: &'a Marks) -> impl Iterator<Item = &'a DeviceId> {
        let whole = was.whole.as_ref().filter(|_| !self.marks.contains_key(id));
        let parts = whole.into_iter().flat_map(|whole| self.inventory.parts_of(whole));
        let kin = whole.into_iter().chain(parts.map(|part| &part.id));
        kin.filter(|id| self.marks.contains_key(id))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;
    use windlass_core::{
        device::{DeviceKind, DeviceNode, Place},
        health::{HealthTracker, Observation, Reason},
    };

    use super::*;

    fn device(id: &str, source: &str, node: Option<&str>) -> Device {
        let (id, source) = (id.parse().expect("valid"), source.parse().expect("valid"));
        let place = Place { pci: Some("0000:05:00.0".parse().expect("valid")), ..Place::default() };
        let new = Device::new(id, DeviceKind::Nic, source, Timestamp::UNIX_EPOCH);
        Device { place, nodes: node.map(DeviceNode::new).into_iter().collect(), ..new }
    }

    /// Whether a device is found to have a part of what another was.
    fn is_found(was: &Device, now: &[Device]) -> bool {
        let marked = Marked::from([(was.id.clone(), Marks::of(was))]);
        let inventory = Inventory { devices: now.to_vec(), ..Inventory::default() };
        let found = !earlier_ids(&marked, &inventory).is_empty();
        assert_eq!(reveals(&marked, &Inventory::default(), &inventory), found);
        assert!(!reveals(&marked, &inventory, &inventory));
        found
    }

    #[test]
    fn a_function_is_one_thing_unless_nodes_tell_its_devices_apart() {
        let named = |id| device(id, "nics", None);
        let of_node = |id, node| device(id, "nics", Some(node));
        assert!(is_found(&named("a"), &[named("b")]));
        assert!(is_found(&named("a"), &[of_node("b", "/dev/vfio/1")]));
        assert!(!is_found(&of_node("a", "/dev/x"), &[of_node("b", "/dev/y")]));
        assert!(is_found(&of_node("a", "/dev/x"), &[device("b", "other", Some("/dev/y"))]));
        assert!(!is_found(&named("a"), &[named("a"), named("b")]), "both say what they are");
    }

    #[test]
    fn a_group_of_functions_is_one_thing_though_all_of_them_are_there() {
        let of_group = |id| device(id, "nics", Some("/dev/vfio/12"));
        assert!(is_found(&of_group("a"), &[of_group("a"), of_group("b")]));
        let of_device = |id, node| device(id, "nics", Some(node));
        let own = of_device("a", "/dev/vfio/devices/vfio0");
        assert!(!is_found(&own, &[own.clone(), of_device("b", "/dev/vfio/devices/vfio1")]));
    }

    fn inventory(devices: &[&Device]) -> Inventory {
        let devices = devices.iter().copied().cloned().collect();
        Inventory { devices, ..Inventory::default() }
    }

    #[test]
    fn what_had_a_group_beside_another_leaves_it_to_the_other_when_it_goes() {
        let [a, b] = ["a", "b"].map(|id| device(id, "nics", Some("/dev/vfio/12")));
        let marked = Marked::from([(a.id.clone(), Marks::of(&a))]);
        let both = inventory(&[&a, &b]);
        assert!(reveals(&marked, &both, &inventory(&[&b])));
        let elsewhere = device("a", "nics", Some("/dev/vfio/13"));
        assert!(reveals(&marked, &both, &inventory(&[&elsewhere, &b])));
        let other = device("c", "nics", Some("/dev/vfio/14"));
        assert!(!reveals(&marked, &both, &inventory(&[&a, &b, &other])));
    }

    #[test]
    fn instances_that_are_gone_have_no_part_in_one_another() {
        let whole = device("gpu", "nvidia", None);
        let vanished = Observation::Failed(Reason::Vanished, "gone".into());
        let mut tracker = HealthTracker::new(Duration::from_secs(1), Timestamp::UNIX_EPOCH);
        tracker.observe(&vanished, Timestamp::UNIX_EPOCH);
        let gone = ["one", "two"].map(|id| Device {
            parent: Some(whole.id.clone()),
            health: tracker.health().clone(),
            ..device(id, "nvidia", None)
        });
        let marked = gone.iter().map(|part| (part.id.clone(), Marks::of(part))).collect();
        let earlier = earlier_ids(&marked, &inventory(&[&whole, &gone[0], &gone[1]]));
        assert_eq!(earlier, [(whole.id, marked.into_keys().collect())].into());
    }

    #[test]
    fn a_board_on_the_network_is_known_by_its_address() {
        let board = |id, source, origin: &str| {
            let origin = Some(origin.to_owned());
            Device { origin, place: Place::default(), ..device(id, source, None) }
        };
        let was = board("a", "boards", "10.0.0.7");
        assert!(is_found(&was, &[board("b", "others", "10.0.0.7")]));
        assert!(!is_found(&was, &[board("b", "others", "10.0.0.8")]));
        assert!(is_found(&was, &[was.clone(), board("b", "others", "10.0.0.7")]));
        assert!(!is_found(&was, &[was.clone(), board("b", "boards", "10.0.0.7")]));
        let tun = |id, source| Device {
            nodes: vec![DeviceNode::shared("/dev/net/tun")],
            ..board(id, source, "/dev/net/tun")
        };
        assert!(!is_found(&tun("a", "one"), &[tun("b", "two")]), "what all share is no one's");
    }
}
