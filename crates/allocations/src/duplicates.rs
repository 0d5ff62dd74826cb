//! Duplicates: devices that are the same hardware.
//!
//! Two devices of different sources are duplicates if they have the same device node or PCI function, or, if they have
//! neither, the same origin. Any two devices in one IOMMU group count too: the kernel gives a group to one user as a
//! whole. Only one of the duplicates is offered, so that the hardware has one owner.

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

/// Hardware that belongs to one device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Hardware {
    /// A device node that no other device should have.
    Node(PathBuf),
    /// An IOMMU group by its node, such as `/dev/vfio/12`.
    IommuGroup(PathBuf),
    /// A PCI function.
    Function(PciAddress),
    /// Origin of a described device: a sysfs folder, a file or a network address.
    #[serde(rename = "place")]
    Origin(String),
}

/// Folder with the nodes of IOMMU groups. Nodes in its subfolders belong to single devices.
const VFIO_DIR: &str = "/dev/vfio";

/// Duplicates that are not offered, with the reason. The first candidate keeps the hardware. Candidates in `previous`,
/// which were allocatable before, precede the others.
pub fn duplicates<'a>(
    candidates: impl IntoIterator<Item = &'a Device>,
    previous: &BTreeSet<DeviceId>,
) -> BTreeMap<DeviceId, String> {
    let is_present = |device: &&Device| !device.health.has_vanished();
    let mut devices: Vec<_> = candidates.into_iter().filter(is_present).collect();
    devices.sort_by_key(|device| !previous.contains(&device.id));
    let mut owners: BTreeMap<Hardware, &Device> = BTreeMap::new();
    let mut duplicates = BTreeMap::new();
    for device in devices {
        let own_hardware = hardware(device);
        if let Some(reason) = own_hardware
            .iter()
            .find_map(|hardware| conflict(hardware, owners.get(hardware)?, device))
        {
            duplicates.insert(device.id.clone(), reason);
        } else {
            for hardware in own_hardware {
                owners.entry(hardware).or_insert(device);
            }
        }
    }
    duplicates
}

/// All pairs of duplicates, vanished devices included.
pub(crate) fn duplicate_pairs(devices: &[Device]) -> impl Iterator<Item = (&Device, &Device)> {
    let mut owners: BTreeMap<Hardware, Vec<&Device>> = BTreeMap::new();
    for device in devices {
        for hardware in hardware(device) {
            owners.entry(hardware).or_default().push(device);
        }
    }
    owners.into_iter().flat_map(|(hardware, owners)| {
        let pairs = owners.iter().enumerate().flat_map(|(nth, one)| {
            let others = owners[nth + 1..].iter();
            others.map(move |other| (*one, *other))
        });
        let pairs = pairs.filter(|(one, other)| conflict(&hardware, one, other).is_some());
        pairs.collect::<Vec<_>>()
    })
}

/// Reason not to offer a device beside `owner`, which has the same hardware.
fn conflict(hardware: &Hardware, owner: &Device, device: &Device) -> Option<String> {
    let is_same_source = owner.source == device.source;
    match hardware {
        Hardware::IommuGroup(_) if is_same_source || owner.place.pci != device.place.pci => {
            return Some(format!("{} is in the same IOMMU group, and is offered", owner.id));
        }
        _ if is_same_source => return None,
        Hardware::Function(_) if is_part(owner) && is_part(device) => return None,
        Hardware::Node(_)
        | Hardware::IommuGroup(_)
        | Hardware::Function(_)
        | Hardware::Origin(_) => {}
    }
    Some(format!(
        "{} of {} is the same device, by {hardware}, and is offered: leave one of the two out",
        owner.id, owner.source
    ))
}

fn hardware(device: &Device) -> Vec<Hardware> {
    let function = device.place.pci.map(Hardware::Function);
    own_nodes(device).chain(function).chain(origin_only(device)).collect()
}

// === impl Hardware ===

impl fmt::Display for Hardware {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(path) | Self::IommuGroup(path) => path.display().fmt(f),
            Self::Function(address) => write!(f, "PCI function {address}"),
            Self::Origin(origin) => origin.fmt(f),
        }
    }
}

/// Device nodes that no other device should have.
pub fn own_nodes(device: &Device) -> impl Iterator<Item = Hardware> {
    device.own_nodes().map(|node| match node.path.parent() {
        Some(folder) if folder == Path::new(VFIO_DIR) => Hardware::IommuGroup(node.path.clone()),
        _ => Hardware::Node(node.path.clone()),
    })
}

/// Origin of a device that has neither device nodes nor a PCI function.
fn origin_only(device: &Device) -> Option<Hardware> {
    let has_only_origin = device.nodes.is_empty() && device.place.pci.is_none();
    device.origin.clone().filter(|_| has_only_origin).map(Hardware::Origin)
}

/// True if a device is defined by its device nodes. One PCI function may have several such devices, such as the ports
/// of a serial card.
pub fn is_part(device: &Device) -> bool {
    device.kind == DeviceKind::Other && own_nodes(device).next().is_some()
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use windlass_core::device::{DeviceKind, DeviceNode, Location};

    use super::*;

    fn device(id: &str, source: &str, nodes: &[DeviceNode]) -> Device {
        let (id, source) = (id.parse().expect("valid"), source.parse().expect("valid"));
        let device = Device::new(id, DeviceKind::Other, source, Timestamp::UNIX_EPOCH);
        Device { nodes: nodes.to_vec(), ..device }
    }

    #[test]
    fn of_two_devices_with_one_node_the_first_is_offered() {
        let node = DeviceNode::new("/dev/video0");
        let devices =
            [device("a", "one", std::slice::from_ref(&node)), device("b", "two", &[node])];
        let reasons = duplicates(&devices, &BTreeSet::new());
        assert!(reasons[&devices[1].id].starts_with("a of one is the same device, by /dev/video0"));
        assert_eq!(reasons.len(), 1);
        let previous = BTreeSet::from([devices[1].id.clone()]);
        assert!(
            duplicates(&devices, &previous).contains_key(&devices[0].id),
            "a device that was allocatable before keeps the hardware"
        );
    }

    #[test]
    fn ports_of_one_card_differ_by_their_nodes() {
        let on_card = |device: Device| {
            let pci = Some("0000:05:00.0".parse().expect("valid"));
            Device { place: Location { pci, ..Location::default() }, ..device }
        };
        let [port, other] = ["/dev/ttyS4", "/dev/ttyS5"].map(|path| [DeviceNode::new(path)]);
        let ports = [device("a", "one", &port), device("b", "two", &other)].map(on_card);
        assert_eq!(duplicates(&ports, &BTreeSet::new()), BTreeMap::new());
        let card = on_card(device("card", "three", &[]));
        let reasons = duplicates(ports.iter().chain([&card]), &BTreeSet::new());
        assert!(reasons[&card.id].contains("by PCI function 0000:05:00.0"), "{reasons:?}");
    }

    #[test]
    fn nodes_that_are_shared_and_parts_of_one_source_are_no_duplicates() {
        let kfd = DeviceNode::shared("/dev/kfd");
        let own_node = DeviceNode::new("/dev/dri/card0");
        let devices = [
            device("a", "one", &[kfd.clone(), own_node.clone()]),
            device("b", "one", &[own_node]),
            device("c", "two", &[kfd]),
        ];
        assert_eq!(duplicates(&devices, &BTreeSet::new()), BTreeMap::new());
    }

    #[test]
    fn devices_without_node_and_function_are_compared_by_place() {
        let device_at = |id: &str, source: &str, origin: &str, nodes: &[DeviceNode]| Device {
            origin: Some(origin.to_owned()),
            ..device(id, source, nodes)
        };
        let port = [DeviceNode::new("/dev/ttyUSB0")];
        let devices = [
            device_at("a", "one", "10.0.0.7", &[]),
            device_at("b", "two", "10.0.0.7", &[]),
            device_at("c", "two", "10.0.0.8", &[]),
            device_at("d", "one", "/sys/devices/usb1/1-4", &port),
            device_at("e", "two", "/sys/devices/usb1/1-4", &[]),
        ];
        let reasons = duplicates(&devices, &BTreeSet::new());
        assert!(reasons[&devices[1].id].starts_with("a of one is the same device, by 10.0.0.7"));
        assert_eq!(reasons.len(), 1, "a device with a node is not compared by place: {reasons:?}");
    }

    #[test]
    fn an_iommu_group_goes_to_one_device_of_a_source_too() {
        let nodes = [DeviceNode::new("/dev/vfio/62"), DeviceNode::shared("/dev/vfio/vfio")];
        let device_at = |id: &str, source: &str, pci: &str, nodes: &[DeviceNode]| {
            let pci = Some(pci.parse().expect("valid"));
            Device { place: Location { pci, ..Location::default() }, ..device(id, source, nodes) }
        };
        let other_nodes = [DeviceNode::new("/dev/vfio/63"), nodes[1].clone()];
        let devices = [
            device_at("a", "one", "0000:17:00.2", &nodes),
            device_at("b", "one", "0000:17:00.3", &nodes),
            device_at("c", "one", "0000:17:00.4", &other_nodes),
            device_at("d", "two", "0000:17:00.5", &nodes),
            device_at("e", "two", "0000:17:00.2", &nodes),
        ];
        let reasons = duplicates(&devices, &BTreeSet::new());
        let reason = |nth: usize| reasons.get(&devices[nth].id).map(String::as_str);
        assert_eq!(reason(0), None);
        assert_eq!(reason(1), Some("a is in the same IOMMU group, and is offered"));
        assert_eq!(reason(2), None);
        assert_eq!(reason(3), reason(1));
        assert!(
            reason(4)
                .expect("a duplicate")
                .starts_with("a of one is the same device, by /dev/vfio/62")
        );
    }
}
