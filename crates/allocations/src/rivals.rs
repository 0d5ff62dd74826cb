//! Devices that are one thing: of two sources the same node, the same PCI function, or for want of both the
//! same place; of any the same IOMMU group, which the kernel gives to one user as a whole. One of them is
//! offered, or the thing would have two owners.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use windlass_core::{
    device::{Device, DeviceId, DeviceKind},
    pci::PciAddress,
};

/// What belongs to one device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Thing {
    /// A node that no other device should have.
    Node(PathBuf),
    /// An IOMMU group by its node, `/dev/vfio/12`, which the kernel gives to one user as a whole.
    IommuGroup(PathBuf),
    /// A PCI function.
    Function(PciAddress),
    /// Where a described device was found: a folder of sysfs, a file, an address of the network.
    Place(String),
}

/// Where the nodes of IOMMU groups are; what lies deeper belongs to single devices.
const GROUPS: &str = "/dev/vfio";

/// Why each device that another has a claim to is not offered. Those that come first have the claim, and
/// those that were given away before, in this life of the agent or in an earlier one, come before all others.
pub fn rivals<'a>(
    wanted: impl IntoIterator<Item = &'a Device>,
    given: &BTreeSet<DeviceId>,
) -> BTreeMap<DeviceId, String> {
    let is_there = |device: &&Device| !device.health.has_vanished();
    let mut devices: Vec<_> = wanted.into_iter().filter(is_there).collect();
    devices.sort_by_key(|device| !given.contains(&device.id));
    let mut owners: BTreeMap<Thing, &Device> = BTreeMap::new();
    let mut rivals = BTreeMap::new();
    for device in devices {
        let other = |thing: &Thing| why_not_both(thing, owners.get(thing)?, device);
        if let Some(why) = things(device).iter().find_map(other) {
            rivals.insert(device.id.clone(), why);
        } else {
            for thing in things(device) {
                owners.entry(thing).or_insert(device);
            }
        }
    }
    rivals
}

/// All pairs of devices of which only one can be offered, whether they are there or gone.
pub(crate) fn rival_pairs(devices: &[Device]) -> impl Iterator<Item = (&Device, &Device)> {
    let mut owners: BTreeMap<Thing, Vec<&Device>> = BTreeMap::new();
    for device in devices {
        for thing in things(device) {
            owners.entry(thing).or_default().push(device);
        }
    }
    owners.into_iter().flat_map(|(thing, owners)| {
        let pairs = owners.iter().enumerate().flat_map(|(nth, one)| {
            let others = owners[nth + 1..].iter();
            others.map(move |other| (*one, *other))
        });
        let rivals = pairs.filter(|(one, other)| why_not_both(&thing, one, other).is_some());
        rivals.collect::<Vec<_>>()
    })
}

/// Why a device is not offered beside the owner of a thing that belongs to both.
fn why_not_both(thing: &Thing, owner: &Device, device: &Device) -> Option<String> {
    let is_same_source = owner.source == device.source;
    match thing {
        Thing::IommuGroup(_) if is_same_source || owner.place.pci != device.place.pci => {
            return Some(format!("{} is in the same IOMMU group, and is offered", owner.id));
        }
        _ if is_same_source => return None,
        Thing::Function(_) if is_part(owner) && is_part(device) => return None,
        Thing::Node(_) | Thing::IommuGroup(_) | Thing::Function(_) | Thing::Place(_) => {}
    }
    Some(format!(
        "{} of {} is the same device, by {thing}, and is offered: leave one of the two out",
        owner.id, owner.source
    ))
}

fn things(device: &Device) -> Vec<Thing> {
    let function = device.place.pci.map(Thing::Function);
    own_nodes(device).chain(function).chain(sole_place(device)).collect()
}

// === impl Thing ===

impl fmt::Display for Thing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(path) | Self::IommuGroup(path) => path.display().fmt(f),
            Self::Function(address) => write!(f, "PCI function {address}"),
            Self::Place(place) => place.fmt(f),
        }
    }
}

/// The nodes that no other device should have, as things.
pub fn own_nodes(device: &Device) -> impl Iterator<Item = Thing> {
    device.own_nodes().map(|node| match node.path.parent() {
        Some(folder) if folder == Path::new(GROUPS) => Thing::IommuGroup(node.path.clone()),
        _ => Thing::Node(node.path.clone()),
    })
}

/// Where a device is of which nothing else is known.
fn sole_place(device: &Device) -> Option<Thing> {
    let nothing_else = device.nodes.is_empty() && device.place.pci.is_none();
    device.origin.clone().filter(|_| nothing_else).map(Thing::Place)
}

/// Whether a device is its nodes, of which one PCI function may have several, such as a card of serial
/// ports.
pub fn is_part(device: &Device) -> bool {
    device.kind == DeviceKind::Other && own_nodes(device).next().is_some()
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use windlass_core::device::{DeviceKind, DeviceNode, Place};

    use super::*;

    fn device(id: &str, source: &str, nodes: &[DeviceNode]) -> Device {
        let (id, source) = (id.parse().expect("valid"), source.parse().expect("valid"));
        let new = Device::new(id, DeviceKind::Other, source, Timestamp::UNIX_EPOCH);
        Device { nodes: nodes.to_vec(), ..new }
    }

    #[test]
    fn of_two_devices_with_one_node_the_first_is_offered() {
        let node = DeviceNode::new("/dev/video0");
        let all = [device("a", "one", std::slice::from_ref(&node)), device("b", "two", &[node])];
        let found = rivals(&all, &BTreeSet::new());
        assert!(found[&all[1].id].starts_with("a of one is the same device, by /dev/video0"));
        assert_eq!(found.len(), 1);
        let given = BTreeSet::from([all[1].id.clone()]);
        assert!(rivals(&all, &given).contains_key(&all[0].id), "what was given away stays");
    }

    #[test]
    fn ports_of_one_card_are_told_apart_by_their_nodes() {
        let on_card = |device: Device| {
            let pci = Some("0000:05:00.0".parse().expect("valid"));
            Device { place: Place { pci, ..Place::default() }, ..device }
        };
        let [port, other] = ["/dev/ttyS4", "/dev/ttyS5"].map(|path| [DeviceNode::new(path)]);
        let ports = [device("a", "one", &port), device("b", "two", &other)].map(on_card);
        assert_eq!(rivals(&ports, &BTreeSet::new()), BTreeMap::new());
        let card = on_card(device("card", "three", &[]));
        let found = rivals(ports.iter().chain([&card]), &BTreeSet::new());
        assert!(found[&card.id].contains("by PCI function 0000:05:00.0"), "{found:?}");
    }

    #[test]
    fn nodes_that_are_shared_and_parts_of_one_source_are_no_rivals() {
        let kfd = DeviceNode::shared("/dev/kfd");
        let own = DeviceNode::new("/dev/dri/card0");
        let all = [
            device("a", "one", &[kfd.clone(), own.clone()]),
            device("b", "one", &[own]),
            device("c", "two", &[kfd]),
        ];
        assert_eq!(rivals(&all, &BTreeSet::new()), BTreeMap::new());
    }

    #[test]
    fn what_has_neither_node_nor_function_is_known_by_its_place() {
        let at = |id: &str, source: &str, place: &str, nodes: &[DeviceNode]| Device {
            origin: Some(place.to_owned()),
            ..device(id, source, nodes)
        };
        let port = [DeviceNode::new("/dev/ttyUSB0")];
        let all = [
            at("a", "one", "10.0.0.7", &[]),
            at("b", "two", "10.0.0.7", &[]),
            at("c", "two", "10.0.0.8", &[]),
            at("d", "one", "/sys/devices/usb1/1-4", &port),
            at("e", "two", "/sys/devices/usb1/1-4", &[]),
        ];
        let found = rivals(&all, &BTreeSet::new());
        assert!(found[&all[1].id].starts_with("a of one is the same device, by 10.0.0.7"));
        assert_eq!(found.len(), 1, "a port is a part of what is in its place: {found:?}");
    }

    #[test]
    fn an_iommu_group_goes_to_one_device_of_a_source_too() {
        let nodes = [DeviceNode::new("/dev/vfio/62"), DeviceNode::shared("/dev/vfio/vfio")];
        let at = |id: &str, source: &str, pci: &str, nodes: &[DeviceNode]| {
            let pci = Some(pci.parse().expect("valid"));
            Device { place: Place { pci, ..Place::default() }, ..device(id, source, nodes) }
        };
        let own = [DeviceNode::new("/dev/vfio/63"), nodes[1].clone()];
        let all = [
            at("a", "one", "0000:17:00.2", &nodes),
            at("b", "one", "0000:17:00.3", &nodes),
            at("c", "one", "0000:17:00.4", &own),
            at("d", "two", "0000:17:00.5", &nodes),
            at("e", "two", "0000:17:00.2", &nodes),
        ];
        let found = rivals(&all, &BTreeSet::new());
        let why = |nth: usize| found.get(&all[nth].id).map(String::as_str);
        assert_eq!(why(0), None);
        assert_eq!(why(1), Some("a is in the same IOMMU group, and is offered"));
        assert_eq!(why(2), None);
        assert_eq!(why(3), why(1));
        assert!(
            why(4).expect("a rival").starts_with("a of one is the same device, by /dev/vfio/62")
        );
    }
}
