//! Devices that wait for the disk: their offer is new or changed, and its files are not written. Unchanged offers stay
//! while the disk hangs.

use std::collections::{BTreeMap, BTreeSet};

use windlass_config::Sharing;
use windlass_core::{
    device::{Device, DeviceId},
    inventory::Inventory,
    resource::ResourceName,
};
use windlass_resources::{
    NodeState,
    offers::{Allocatability, Offers, Plan},
};

use super::disk::{DesiredFiles, DiskState, is_same};

type Offered<'a> = BTreeMap<&'a DeviceId, (&'a ResourceName, Sharing)>;

/// Devices that the plan offers although their files are not written.
pub(super) fn waiting_for_disk(
    plan: &Plan,
    published: &NodeState,
    (desired, on_disk): (&DesiredFiles, &DiskState),
) -> BTreeSet<DeviceId> {
    let (offered, published_offers) = (offered(&plan.offers), offered(&published.offers));
    let has_same_delivery = published.policy.delivery == desired.policy.delivery;
    let is_as_published = |device: &Device| {
        let has_same_offer = offered
            .get(&device.id)
            .is_none_or(|offer| published_offers.get(&device.id) == Some(offer));
        let is_claimable =
            !plan.claimable.contains_key(&device.id) || may_be_claimed(published, device);
        let previous = published.inventory.get(device.id.as_str());
        let is_unchanged = previous.is_some_and(|previous| is_same(previous, device));
        has_same_offer && is_claimable && is_unchanged && on_disk.has_current_info(device, desired)
    };
    let devices = desired.inventory.devices.iter().filter(|device| device.health.is_healthy());
    let is_offered = |device: &&Device| {
        offered.contains_key(&device.id) || plan.claimable.contains_key(&device.id)
    };
    let may_stay = |device: &&Device| {
        (has_same_delivery && is_as_published(device)) || on_disk.covers(device, desired)
    };
    devices
        .filter(is_offered)
        .filter(|device| !may_stay(device))
        .map(|device| device.id.clone())
        .collect()
}

/// True if a device lost its health, which is published without delay.
pub(super) fn has_lost_health(previous: &Inventory, current: &Inventory) -> bool {
    let healthy = previous.devices.iter().filter(|device| device.health.is_healthy());
    let is_healthy = |device: &Device| {
        current.get(device.id.as_str()).is_some_and(|device| device.health.is_healthy())
    };
    healthy.into_iter().any(|device| !is_healthy(device))
}

fn offered(offers: &Offers) -> Offered<'_> {
    let devices = offers.iter().flat_map(|(name, offer)| {
        let offered = offer
            .devices
            .iter()
            .filter(|(_, device)| !matches!(device.state, Allocatability::Blocked(_)));
        offered.map(move |(id, device)| (id, (name, device.sharing)))
    });
    devices.collect()
}

fn may_be_claimed(published: &NodeState, device: &Device) -> bool {
    published.is_claimable(&device.id) && published.obstacle(device).is_none()
}
