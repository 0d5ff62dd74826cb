//! What is in the way of healthy devices, beside whoever has them: the same for containers of the device plugin
//! and for claims, so that neither way gives away what the other keeps back.

use std::collections::BTreeSet;

use windlass_cluster::leases::{LeaseState, LeaseStates};
use windlass_config::{DraOffer, Policy};
use windlass_core::{
    device::{Device, DeviceId},
    inventory::Inventory,
};
use windlass_resources::obstacle::{Obstacle, ObstacleSort, Obstacles};

use super::look::Looked;

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
