//! Obstacles: reasons to withhold a healthy device, other than its holders. Device plugin and claims share the checks,
//! so both APIs withhold the same devices.

use std::collections::BTreeSet;

use windlass_cluster::leases::{LeaseState, LeaseStates};
use windlass_config::{DraOffer, Policy};
use windlass_core::{
    device::{Device, DeviceId},
    inventory::Inventory,
};
use windlass_resources::obstacle::{Obstacle, ObstacleKind, Obstacles};

use super::disk_check::DiskCheckResult;

/// Obstacle of a device whose document and fingerprint are not written.
const WAITING_FOR_DISK: &str = "waiting for the disk to store its CDI document and its fingerprint";

/// Reason why a device has to wait for its Lease, if it has to.
pub(super) type LeaseObstacle<'a> = &'a dyn Fn(&Device) -> Option<String>;

/// Checks of single devices, and the state that they read.
#[derive(Clone, Copy)]
pub(super) struct ObstacleChecks<'a> {
    pub(super) check_result: &'a DiskCheckResult,
    pub(super) policy: &'a Policy,
    /// Devices that wait for the disk.
    pub(super) waiting_for_disk: &'a BTreeSet<DeviceId>,
    pub(super) lease: LeaseObstacle<'a>,
}

// === impl ObstacleChecks ===

impl ObstacleChecks<'_> {
    /// Obstacle for containers of the device plugin, which may work without documents.
    pub(super) fn of_containers(self, device: &Device) -> Option<Obstacle> {
        let document = self.check_result.document_obstacle(device);
        document.filter(|_| self.policy.delivery.uses_cdi()).or_else(|| self.common(device))
    }

    /// Obstacle for shares by amounts and for claims, which need the document.
    pub(super) fn of_shares(self, device: &Device) -> Option<Obstacle> {
        self.check_result.document_obstacle(device).or_else(|| self.common(device))
    }

    /// Obstacles for claims. A missing MPS daemon is no obstacle: preparation of the claim waits for it.
    pub(super) fn of_claims(self, inventory: &Inventory) -> Obstacles {
        let devices = inventory.devices.iter().filter(|_| self.policy.dra.offer != DraOffer::Off);
        let obstacle = |device: &Device| {
            let obstacle = self.of_shares(device)?;
            Some((device.id.clone(), obstacle))
        };
        devices.filter_map(obstacle).collect()
    }

    /// Obstacle for containers, shares and claims alike.
    fn common(self, device: &Device) -> Option<Obstacle> {
        let lease = || {
            let reason = (self.lease)(device)?;
            Some(Obstacle { kind: ObstacleKind::Lease, reason })
        };
        let disk = || {
            let (kind, reason) = (ObstacleKind::Document, WAITING_FOR_DISK.to_owned());
            self.waiting_for_disk.contains(&device.id).then_some(Obstacle { kind, reason })
        };
        let node = || self.check_result.node_obstacle(device);
        disk()
            .or_else(node)
            .or_else(|| self.check_result.imex_obstacle(self.policy, device))
            .or_else(lease)
    }
}

/// Obstacle of a shared device whose Lease another node holds.
pub(super) fn lease_obstacle(
    leases: &LeaseStates,
    policy: &Policy,
    device: &Device,
) -> Option<String> {
    let state = || leases.get(&device.id).unwrap_or(&LeaseState::Unknown).obstacle();
    policy.is_leased(device).then(state).flatten()
}
