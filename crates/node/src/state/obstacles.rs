//! What is in the way of healthy devices, beside whoever has them: the same for containers of the device plugin
//! and for claims, so that neither way gives away what the other keeps back.

use std::collections::{BTreeMap, BTreeSet};

use windlass_core::{
    device::{Device, DeviceId},
    inventory::Inventory,
};

use super::look::Looked;
use crate::{
    cluster::leases::{LeaseState, LeaseStates},
    config::{DraOffer, Policy},
};

/// What is in the way of a healthy device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Obstacle {
    pub(crate) sort: ObstacleSort,
    pub(crate) why: String,
}

/// What sort of obstacle it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ObstacleSort {
    /// The CDI document that has the device cannot be written.
    Document,
    /// A channel of the NVLink fabric is required, and missing.
    ImexChannel,
    /// A node of the device is missing, or another device's by now.
    DeviceNode,
    /// Several nodes reach the device, and this one does not hold its lease.
    Lease,
}

/// The devices that claims are not to get, and what is in the way.
pub(crate) type Obstacles = BTreeMap<DeviceId, Obstacle>;

/// What is told of a device until its document and its note are on the disk.
const LATE: &str =
    "the disk has not taken yet what a container needs of it, and what is noted of it";

/// Why the lease of a device is in the way, if it is.
pub(super) type LeaseTrouble<'a> = &'a dyn Fn(&Device) -> Option<String>;

/// Where obstacles are looked for.
#[derive(Clone, Copy)]
pub(super) struct Way<'a> {
    pub(super) looked: &'a Looked,
    pub(super) policy: &'a Policy,
    /// Devices that wait for the disk.
    pub(super) late: &'a BTreeSet<DeviceId>,
    pub(super) lease: LeaseTrouble<'a>,
}

// === impl ObstacleSort ===

impl ObstacleSort {
    /// In one word, as the value of a taint.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Document => "cdi-document",
            Self::ImexChannel => "imex-channel",
            Self::DeviceNode => "device-node",
            Self::Lease => "lease",
        }
    }
}

// === impl Way ===

impl Way<'_> {
    /// What keeps a device from containers of the device plugin, which may do without documents.
    pub(super) fn of_containers(self, device: &Device) -> Option<Obstacle> {
        let document = self.looked.undocumented(device);
        document.filter(|_| self.policy.delivery.uses_cdi()).or_else(|| self.of_all(device))
    }

    /// What keeps devices from claims. Daemons of MPS are no such thing: a claim waits for them itself.
    pub(super) fn of_claims(self, inventory: &Inventory) -> Obstacles {
        let devices = inventory.devices.iter().filter(|_| self.policy.dra.offer != DraOffer::Off);
        let obstacle = |device: &Device| {
            let found = self.looked.undocumented(device).or_else(|| self.of_all(device))?;
            Some((device.id.clone(), found))
        };
        devices.filter_map(obstacle).collect()
    }

    fn of_all(self, device: &Device) -> Option<Obstacle> {
        let lease = || {
            let why = (self.lease)(device)?;
            Some(Obstacle { sort: ObstacleSort::Lease, why })
        };
        let late = || {
            let (sort, why) = (ObstacleSort::Document, LATE.to_owned());
            self.late.contains(&device.id).then_some(Obstacle { sort, why })
        };
        let node = || self.looked.lacks_node(device);
        late()
            .or_else(node)
            .or_else(|| self.looked.lacks_channel(self.policy, device))
            .or_else(lease)
    }
}

/// Why a device that several nodes reach is not this node's to hand out.
pub(super) fn lease_trouble(
    leases: &LeaseStates,
    policy: &Policy,
    device: &Device,
) -> Option<String> {
    let state = || leases.get(&device.id).unwrap_or(&LeaseState::Unknown).trouble();
    policy.is_leased(device).then(state).flatten()
}
