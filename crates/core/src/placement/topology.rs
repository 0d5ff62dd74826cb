//! Placement topology: devices of a node and the affinity of each pair, computed once per inventory.

use crate::{
    device::{Device, DeviceId, DeviceKind},
    inventory::Inventory,
    topology::{Connection, ConnectionMatrix},
};

use super::affinity::{Affinity, links, pcie};

/// Devices by position: the inventory's order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    devices: Vec<PlacedDevice>,
    /// Positions in the order of ids, for binary search.
    by_id: Vec<usize>,
    connections: ConnectionMatrix,
    /// Affinity by links and by PCIe: row-major square matrices, symmetric, zero on the diagonal.
    links: Vec<i64>,
    pcie: Vec<i64>,
}

/// Data of one device for placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PlacedDevice {
    pub(super) id: DeviceId,
    pub(super) numa_node: Option<u32>,
    /// Unit of packing and spreading: the partitions of one GPU, or the whole devices of one NUMA node.
    pub(super) group: Group,
    /// PCIe affinity to the nearest NIC; 0 for NICs.
    pub(super) nic_affinity: i64,
}

/// Unit of packing and spreading.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Group {
    /// Partitions by parent and profile. Profiles are separate resources.
    Partitions(DeviceId, Option<String>),
    /// Whole devices by kind and NUMA node.
    Numa(DeviceKind, Option<u32>),
}

// === impl Topology ===

impl Topology {
    /// The topology of an inventory without vanished devices: MIG instances of an earlier layout would count
    /// as in use.
    pub fn from_inventory(inventory: &Inventory) -> Self {
        let devices = inventory.devices.iter();
        Self::from_devices(devices.filter(|device| !device.health.has_vanished()))
    }

    /// The topology of the devices. The first device with a duplicate id counts, in the inventory's order.
    pub fn from_devices<'a>(devices: impl IntoIterator<Item = &'a Device>) -> Self {
        let mut devices: Vec<_> = devices.into_iter().collect();
        devices.sort_by(|a, b| a.sort_key().cmp(&b.sort_key()));
        let mut by_id: Vec<_> = (0..devices.len()).collect();
        by_id.sort_by(|&a, &b| devices[a].id.cmp(&devices[b].id));
        by_id.dedup_by(|a, b| devices[*a].id == devices[*b].id);
        let connections = ConnectionMatrix::from_devices(&devices);
        let size = devices.len();
        let cells = (0..size).flat_map(|row| (0..size).map(move |column| (row, column)));
        let affinity = |measure: fn(Connection) -> i64| {
            let measure = |(a, b)| if a == b { 0 } else { measure(connections.at(a, b)) };
            cells.clone().map(measure).collect::<Vec<i64>>()
        };
        let (links, pcie) = (affinity(links), affinity(|connection| pcie(connection.pcie)));
        let is_nic: Vec<_> = devices.iter().map(|device| is_nic_for_containers(device)).collect();
        let placed_device = |(position, device): (usize, &&Device)| {
            let nics = (0..size).filter(|&other| is_nic[other] && !is_nic[position]);
            PlacedDevice::new(
                device,
                nics.map(|nic| pcie[position * size + nic]).max().unwrap_or(0),
            )
        };
        let devices = devices.iter().enumerate().map(placed_device).collect();
        Self { devices, by_id, connections, links, pcie }
    }

    /// Number of devices.
    pub fn len(&self) -> usize {
        self.devices.len()
    }

    /// True without devices.
    pub fn is_empty(&self) -> bool {
        self.devices.is_empty()
    }

    /// Position of a device.
    pub fn position(&self, id: &str) -> Option<usize> {
        let compare = |position: &usize| self.devices[*position].id.as_str().cmp(id);
        let index = self.by_id.binary_search_by(compare).ok()?;
        Some(self.by_id[index])
    }

    /// Id of the device at a position.
    pub fn id(&self, position: usize) -> &DeviceId {
        &self.devices[position].id
    }

    /// Connection of the devices at two positions.
    pub fn connection(&self, a: usize, b: usize) -> Connection {
        self.connections.at(a, b)
    }

    /// Packed affinity of two positions: links or PCIe, then PCIe. 0 for equal positions.
    pub(super) fn packed_affinity(&self, a: usize, b: usize) -> i64 {
        let Affinity { primary, pcie } = self.affinity(a, b);
        Affinity { primary: if primary > 0 { primary } else { pcie }, pcie }.packed()
    }

    /// Packed affinity of two positions: links alone, then PCIe.
    pub(super) fn packed_links(&self, a: usize, b: usize) -> i64 {
        self.affinity(a, b).packed()
    }

    fn affinity(&self, a: usize, b: usize) -> Affinity {
        let cell = a * self.devices.len() + b;
        Affinity { primary: self.links[cell], pcie: self.pcie[cell] }
    }

    pub(super) fn device(&self, position: usize) -> &PlacedDevice {
        &self.devices[position]
    }

    pub(super) fn ids(&self, positions: &[usize]) -> Vec<DeviceId> {
        positions.iter().map(|&position| self.id(position).clone()).collect()
    }
}

/// True if a container may get this NIC. Nearness to NICs that the host keeps has no value.
fn is_nic_for_containers(device: &Device) -> bool {
    let is_allocatable = device.exclusive_use_refusal.is_none() || device.sharing_refusal.is_none();
    device.kind.is_network() && device.withheld.is_none() && is_allocatable
}

// === impl PlacedDevice ===

impl PlacedDevice {
    fn new(device: &Device, nic_affinity: i64) -> Self {
        let numa_node = device.place.numa_node;
        let group = match &device.parent {
            Some(whole) => {
                Group::Partitions(whole.clone(), device.mig_profile().map(str::to_owned))
            }
            None => Group::Numa(device.kind, numa_node),
        };
        Self { id: device.id.clone(), numa_node, group, nic_affinity }
    }
}
