//! The devices of a node and how near each is to each other, computed once for an inventory.

use crate::{
    attribute::AttributeName,
    device::{Device, DeviceId, DeviceKind},
    inventory::Inventory,
    topology::{Connection, ConnectionMatrix},
};

use super::affinity::{Worth, links, pcie};

/// Every device that can be chosen, by position: the inventory's order, whatever order it was given in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    spots: Vec<Spot>,
    /// Positions in the order of ids, to find one.
    by_id: Vec<usize>,
    connections: ConnectionMatrix,
    /// What links and PCIe are worth: row-major square matrices, symmetric, zero on the diagonal.
    links: Vec<i64>,
    pcie: Vec<i64>,
}

/// What a choice needs to know of a device besides its connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) id: DeviceId,
    pub(super) numa_node: Option<u32>,
    /// Devices of one group fill it up, or spread over several: the parts of one device, the whole
    /// devices of one NUMA node.
    pub(super) group: Group,
    /// The worth of the nearest NIC; 0 for a NIC itself.
    pub(super) nic: i64,
}

/// What instances of a GPU are told apart by.
const PROFILE: AttributeName = AttributeName::new("nvidia.com", "profile");

/// What a device is a share of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Group {
    /// The device that it is a part of, and its profile: instances of another profile are another
    /// resource's.
    Whole(DeviceId, Option<String>),
    /// The NUMA node of a whole device.
    Numa(DeviceKind, Option<u32>),
}

// === impl Topology ===

impl Topology {
    /// The topology of an inventory. What has vanished is nowhere: a MIG instance of an earlier layout
    /// would be taken for one in use.
    pub fn of(inventory: &Inventory) -> Self {
        let devices = inventory.devices.iter();
        Self::from_devices(devices.filter(|device| !device.health.has_vanished()))
    }

    /// The topology of some devices; of two with one id the first in the inventory's order.
    pub fn from_devices<'a>(devices: impl IntoIterator<Item = &'a Device>) -> Self {
        let mut devices: Vec<_> = devices.into_iter().collect();
        devices.sort_by(|a, b| a.order().cmp(&b.order()));
        let mut by_id: Vec<_> = (0..devices.len()).collect();
        by_id.sort_by(|&a, &b| devices[a].id.cmp(&devices[b].id));
        by_id.dedup_by(|a, b| devices[*a].id == devices[*b].id);
        let connections = ConnectionMatrix::of(&devices);
        let size = devices.len();
        let cells = (0..size).flat_map(|row| (0..size).map(move |column| (row, column)));
        let worth = |of: fn(Connection) -> i64| {
            let of = |(a, b)| if a == b { 0 } else { of(connections.at(a, b)) };
            cells.clone().map(of).collect::<Vec<i64>>()
        };
        let (links, pcie) = (worth(links), worth(|connection| pcie(connection.pcie)));
        let is_nic: Vec<_> = devices.iter().map(|device| is_nic_for_containers(device)).collect();
        let spot = |(at, device): (usize, &&Device)| {
            let nics = (0..size).filter(|&other| is_nic[other] && !is_nic[at]);
            Spot::new(device, nics.map(|nic| pcie[at * size + nic]).max().unwrap_or(0))
        };
        let spots = devices.iter().enumerate().map(spot).collect();
        Self { spots, by_id, connections, links, pcie }
    }

    /// How many devices there are.
    pub fn len(&self) -> usize {
        self.spots.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.spots.is_empty()
    }

    /// The position of a device.
    pub fn position(&self, id: &str) -> Option<usize> {
        let compare = |at: &usize| self.spots[*at].id.as_str().cmp(id);
        let found = self.by_id.binary_search_by(compare).ok()?;
        Some(self.by_id[found])
    }

    /// The id of the device at a position.
    pub fn id(&self, at: usize) -> &DeviceId {
        &self.spots[at].id
    }

    /// How the devices at two positions are connected.
    pub fn connection(&self, a: usize, b: usize) -> Connection {
        self.connections.at(a, b)
    }

    /// The worth of what data travels over between two positions, and of where they sit; 0 for a
    /// position with itself.
    pub(super) fn worth(&self, a: usize, b: usize) -> i64 {
        let Worth { first, pcie } = self.links_and_pcie(a, b);
        Worth { first: if first > 0 { first } else { pcie }, pcie }.packed()
    }

    /// The same, where PCIe does not stand in for links that are not there.
    pub(super) fn links_first(&self, a: usize, b: usize) -> i64 {
        self.links_and_pcie(a, b).packed()
    }

    fn links_and_pcie(&self, a: usize, b: usize) -> Worth {
        let cell = a * self.spots.len() + b;
        Worth { first: self.links[cell], pcie: self.pcie[cell] }
    }

    pub(super) fn spot(&self, at: usize) -> &Spot {
        &self.spots[at]
    }

    pub(super) fn ids(&self, set: &[usize]) -> Vec<DeviceId> {
        set.iter().map(|&at| self.id(at).clone()).collect()
    }
}

/// Whether a container could have this NIC: one that the host keeps for itself is worth no nearness.
fn is_nic_for_containers(device: &Device) -> bool {
    let can_be_had = device.not_alone.is_none() || device.not_shared.is_none();
    device.kind.is_network() && device.withheld.is_none() && can_be_had
}

// === impl Spot ===

impl Spot {
    fn new(device: &Device, nic: i64) -> Self {
        let numa_node = device.place.numa_node;
        let group = match &device.parent {
            Some(whole) => Group::Whole(
                whole.clone(),
                device.attributes.get(&PROFILE).map(ToString::to_string),
            ),
            None => Group::Numa(device.kind, numa_node),
        };
        Self { id: device.id.clone(), numa_node, group, nic }
    }
}
