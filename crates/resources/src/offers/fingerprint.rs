//! Hardware fingerprints of devices: nodes, PCI function and origin. They show that two ids belong to the same
//! hardware.
//!
//! Ids change while containers run: another mode repartitions devices, a source is renamed, or two USB devices
//! with the same serial number swap places. Hardware that a container holds under an old id must not be
//! allocated under a new one. So each id's hardware is recorded when the id becomes allocatable.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use windlass_allocations::{
    HeldIds,
    duplicates::{Hardware, is_part, own_nodes},
};
use windlass_core::{
    device::{Device, DeviceId, SourceName},
    inventory::Inventory,
    replica::device_of_id,
    resource::ResourceName,
};

use super::Plan;

/// Fingerprint of each id when it was last allocatable.
pub type Fingerprints = BTreeMap<DeviceId, Fingerprint>;

/// The hardware of a device, whatever its id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Fingerprint {
    source: SourceName,
    #[serde(rename = "things")]
    hardware: BTreeSet<Hardware>,
    /// Parent of a device that is a part.
    whole: Option<DeviceId>,
    /// True if the device has only some of the nodes of its PCI function.
    part: bool,
    /// Memory of its replicas in MiB; several values while containers may hold replicas of each.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    replica_memory: BTreeSet<u64>,
    /// Resources through which it was allocatable; several while containers may hold it through each.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    resources: BTreeSet<String>,
}

/// Present devices of an inventory, with their fingerprints.
struct PresentDevices<'a> {
    fingerprints: BTreeMap<&'a DeviceId, Fingerprint>,
    inventory: &'a Inventory,
}

/// Records the hardware of allocatable devices. An id that a container may hold keeps its earlier hardware too: while a
/// plan waits, that is every id, since the holders are unknown.
pub fn record(fingerprints: &mut Fingerprints, plan: &Plan, inventory: &Inventory, held: &HeldIds) {
    let held: BTreeSet<_> = held.values().flatten().filter_map(|id| device_of_id(id)).collect();
    let mut allocatable: BTreeMap<DeviceId, BTreeSet<String>> = BTreeMap::new();
    for (name, offer) in &plan.offers {
        for id in offer.once_allocatable() {
            allocatable.entry(id).or_default().insert(name.to_string());
        }
    }
    for device in inventory.devices.iter().filter(|device| !device.health.has_vanished()) {
        let Some(resources) = allocatable.remove(&device.id) else { continue };
        let last = fingerprints.get(&device.id);
        let mut fingerprint = Fingerprint::from_device(device);
        fingerprint.replica_memory.extend(plan.replica_memory(&device.id));
        fingerprint.resources = resources;
        if let Some(last) = last.filter(|_| plan.has_pending_moves || held.contains(&device.id)) {
            fingerprint.hardware.extend(last.hardware.iter().cloned());
            fingerprint.replica_memory.extend(&last.replica_memory);
            fingerprint.resources.extend(last.resources.iter().cloned());
        }
        if last != Some(&fingerprint) {
            fingerprints.insert(device.id.clone(), fingerprint);
        }
    }
}

/// Earlier ids of each present device or of its parts. Present parents and parts are omitted, because the inventory has
/// them.
pub fn earlier_ids(
    recorded: &Fingerprints,
    inventory: &Inventory,
) -> BTreeMap<DeviceId, BTreeSet<DeviceId>> {
    PresentDevices::new(inventory).earlier_ids(recorded)
}

/// True if a change of the inventory gives a device hardware that is recorded under another id, which a container may
/// hold.
pub fn exposes_held_hardware(
    recorded: &Fingerprints,
    last_inventory: &Inventory,
    inventory: &Inventory,
) -> bool {
    if last_inventory.devices == inventory.devices {
        return false;
    }
    let (last, current) = (PresentDevices::new(last_inventory), PresentDevices::new(inventory));
    let last_earlier_ids = last.earlier_ids(recorded);
    let is_unchanged = |id: &DeviceId| last.fingerprints.get(id) == current.fingerprints.get(id);
    !current.earlier_ids(recorded).iter().all(|(id, ids)| {
        last_earlier_ids.get(id).is_some_and(|last_ids| ids.is_subset(last_ids))
            && ids.iter().all(is_unchanged)
    })
}

// === impl Fingerprint ===

impl Fingerprint {
    fn from_device(device: &Device) -> Self {
        let nodes: BTreeSet<_> = own_nodes(device).collect();
        // An origin does not identify a device that shares all its nodes with other devices.
        let is_distinguishing = device.nodes.is_empty() || !nodes.is_empty();
        let origin = device.origin.clone().filter(|_| is_distinguishing).map(Hardware::Origin);
        let function = device.place.pci.map(Hardware::Function);
        Self {
            source: device.source.clone(),
            hardware: nodes.into_iter().chain(function).chain(origin).collect(),
            whole: device.parent.clone(),
            part: is_part(device),
            replica_memory: BTreeSet::new(),
            resources: BTreeSet::new(),
        }
    }

    /// Memory in MiB of the replicas that containers may hold; the largest of several values.
    pub fn replica_memory(&self) -> Option<u64> {
        self.replica_memory.last().copied()
    }

    /// True if the device was allocatable through this resource.
    pub(super) fn was_offered_as(&self, name: &ResourceName) -> bool {
        self.resources.contains(name.as_str())
    }

    /// True if all replicas that containers may hold have this memory.
    pub(super) fn has_replicas_of(&self, memory_mib: Option<u64>) -> bool {
        self.replica_memory.iter().copied().eq(memory_mib)
    }

    fn has_nodes(&self) -> bool {
        self.hardware
            .iter()
            .any(|hardware| matches!(hardware, Hardware::Node(_) | Hardware::IommuGroup(_)))
    }

    fn has_only_origins(&self) -> bool {
        self.hardware.iter().all(|hardware| matches!(hardware, Hardware::Origin(_)))
    }

    /// True if two devices of one PCI function are distinguished by their nodes.
    fn is_distinct_from(&self, other: &Self) -> bool {
        if self.source == other.source {
            self.has_nodes() && other.has_nodes()
        } else {
            self.part && other.part
        }
    }
}

// === impl PresentDevices ===

impl<'a> PresentDevices<'a> {
    fn new(inventory: &'a Inventory) -> Self {
        let devices = inventory.devices.iter().filter(|device| !device.health.has_vanished());
        let fingerprints =
            devices.map(|device| (&device.id, Fingerprint::from_device(device))).collect();
        Self { fingerprints, inventory }
    }

    fn earlier_ids(&self, recorded: &Fingerprints) -> BTreeMap<DeviceId, BTreeSet<DeviceId>> {
        let by_hardware = self.by_hardware();
        let mut earlier: BTreeMap<DeviceId, BTreeSet<DeviceId>> = BTreeMap::new();
        for (id, former) in recorded {
            let successors = former.hardware.iter().flat_map(|hardware| {
                let present = by_hardware.get(hardware).into_iter().flatten();
                present.filter(|other| self.takes_over(hardware, id, former, other)).copied()
            });
            for other in successors.chain(self.relatives(id, former)).filter(|other| *other != id) {
                earlier.entry(other.clone()).or_default().insert(id.clone());
            }
        }
        earlier
    }

    fn by_hardware(&self) -> BTreeMap<&Hardware, Vec<&'a DeviceId>> {
        let mut ids: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (id, fingerprint) in &self.fingerprints {
            fingerprint
                .hardware
                .iter()
                .for_each(|hardware| ids.entry(hardware).or_default().push(*id));
        }
        ids
    }

    /// True if another device has hardware that was recorded under this id: because this id no longer has it, or
    /// because another source found the same hardware. Two devices of one source may share hardware: the source
    /// decides that.
    fn takes_over(
        &self,
        hardware: &Hardware,
        id: &DeviceId,
        former: &Fingerprint,
        other: &DeviceId,
    ) -> bool {
        let (now, other) = (self.fingerprints.get(id), &self.fingerprints[other]);
        let still_has_it =
            now.is_some_and(|now| now.source == other.source && now.hardware.contains(hardware));
        match hardware {
            Hardware::Node(_) => !still_has_it,
            Hardware::IommuGroup(_) => true,
            Hardware::Function(_) => !still_has_it && !former.is_distinct_from(other),
            // Sources may find different devices at one origin, if both are present and have further hardware.
            Hardware::Origin(_) if now.is_none() => true,
            Hardware::Origin(_) => {
                !still_has_it && former.has_only_origins() && other.has_only_origins()
            }
        }
    }

    /// Present parent and present siblings of a vanished part.
    fn relatives(
        &self,
        id: &DeviceId,
        former: &'a Fingerprint,
    ) -> impl Iterator<Item = &'a DeviceId> {
        let parent = former.whole.as_ref().filter(|_| !self.fingerprints.contains_key(id));
        let parts = parent.into_iter().flat_map(|parent| self.inventory.parts_of(parent));
        let relatives = parent.into_iter().chain(parts.map(|part| &part.id));
        relatives.filter(|id| self.fingerprints.contains_key(id))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;
    use windlass_core::{
        device::{DeviceKind, DeviceNode, Location},
        health::{HealthTracker, Observation, Reason},
    };

    use super::*;

    fn device(id: &str, source: &str, node: Option<&str>) -> Device {
        let (id, source) = (id.parse().expect("valid"), source.parse().expect("valid"));
        let place =
            Location { pci: Some("0000:05:00.0".parse().expect("valid")), ..Location::default() };
        let device = Device::new(id, DeviceKind::Nic, source, Timestamp::UNIX_EPOCH);
        Device { place, nodes: node.map(DeviceNode::new).into_iter().collect(), ..device }
    }

    /// True if a present device has hardware of the former one.
    fn is_found(former: &Device, now: &[Device]) -> bool {
        let recorded = Fingerprints::from([(former.id.clone(), Fingerprint::from_device(former))]);
        let inventory = Inventory { devices: now.to_vec(), ..Inventory::default() };
        let is_exposed = !earlier_ids(&recorded, &inventory).is_empty();
        assert_eq!(exposes_held_hardware(&recorded, &Inventory::default(), &inventory), is_exposed);
        assert!(!exposes_held_hardware(&recorded, &inventory, &inventory));
        is_exposed
    }

    #[test]
    fn a_function_is_one_device_unless_nodes_distinguish_several() {
        let without_node = |id| device(id, "nics", None);
        let with_node = |id, node| device(id, "nics", Some(node));
        assert!(is_found(&without_node("a"), &[without_node("b")]));
        assert!(is_found(&without_node("a"), &[with_node("b", "/dev/vfio/1")]));
        assert!(!is_found(&with_node("a", "/dev/x"), &[with_node("b", "/dev/y")]));
        assert!(is_found(&with_node("a", "/dev/x"), &[device("b", "other", Some("/dev/y"))]));
        assert!(
            !is_found(&without_node("a"), &[without_node("a"), without_node("b")]),
            "the source lists both"
        );
    }

    #[test]
    fn an_iommu_group_is_shared_hardware_of_its_functions() {
        let in_group = |id| device(id, "nics", Some("/dev/vfio/12"));
        assert!(is_found(&in_group("a"), &[in_group("a"), in_group("b")]));
        let with_node = |id, node| device(id, "nics", Some(node));
        let first = with_node("a", "/dev/vfio/devices/vfio0");
        assert!(!is_found(&first, &[first.clone(), with_node("b", "/dev/vfio/devices/vfio1")]));
    }

    fn inventory(devices: &[&Device]) -> Inventory {
        let devices = devices.iter().copied().cloned().collect();
        Inventory { devices, ..Inventory::default() }
    }

    #[test]
    fn a_vanished_functions_group_is_exposed_by_the_remaining_function() {
        let [a, b] = ["a", "b"].map(|id| device(id, "nics", Some("/dev/vfio/12")));
        let recorded = Fingerprints::from([(a.id.clone(), Fingerprint::from_device(&a))]);
        let both = inventory(&[&a, &b]);
        assert!(exposes_held_hardware(&recorded, &both, &inventory(&[&b])));
        let moved = device("a", "nics", Some("/dev/vfio/13"));
        assert!(exposes_held_hardware(&recorded, &both, &inventory(&[&moved, &b])));
        let other = device("c", "nics", Some("/dev/vfio/14"));
        assert!(!exposes_held_hardware(&recorded, &both, &inventory(&[&a, &b, &other])));
    }

    #[test]
    fn vanished_instances_are_earlier_ids_of_their_gpu_only() {
        let gpu = device("gpu", "nvidia", None);
        let vanished = Observation::Failed(Reason::Vanished, "gone".into());
        let mut tracker = HealthTracker::new(Duration::from_secs(1), Timestamp::UNIX_EPOCH);
        tracker.observe(&vanished, Timestamp::UNIX_EPOCH);
        let vanished_parts = ["one", "two"].map(|id| Device {
            parent: Some(gpu.id.clone()),
            health: tracker.health().clone(),
            ..device(id, "nvidia", None)
        });
        let recorded = vanished_parts
            .iter()
            .map(|part| (part.id.clone(), Fingerprint::from_device(part)))
            .collect();
        let earlier =
            earlier_ids(&recorded, &inventory(&[&gpu, &vanished_parts[0], &vanished_parts[1]]));
        assert_eq!(earlier, [(gpu.id, recorded.into_keys().collect())].into());
    }

    #[test]
    fn a_network_board_is_identified_by_its_address() {
        let board = |id, source, origin: &str| {
            let origin = Some(origin.to_owned());
            Device { origin, place: Location::default(), ..device(id, source, None) }
        };
        let former = board("a", "boards", "10.0.0.7");
        assert!(is_found(&former, &[board("b", "others", "10.0.0.7")]));
        assert!(!is_found(&former, &[board("b", "others", "10.0.0.8")]));
        assert!(is_found(&former, &[former.clone(), board("b", "others", "10.0.0.7")]));
        assert!(!is_found(&former, &[former.clone(), board("b", "boards", "10.0.0.7")]));
        let tun = |id, source| Device {
            nodes: vec![DeviceNode::shared("/dev/net/tun")],
            ..board(id, source, "/dev/net/tun")
        };
        assert!(!is_found(&tun("a", "one"), &[tun("b", "two")]), "shared nodes identify no device");
    }
}
