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
    offers::{Allocatable, Offers, Plan},
};

use super::disk::{DiskState, WantedFiles, is_same};

type Given<'a> = BTreeMap<&'a DeviceId, (&'a ResourceName, Sharing)>;

/// Devices that the plan offers although their files are not written.
pub(super) fn waiting_for_disk(
    plan: &Plan,
    known: &NodeState,
    (wanted, on_disk): (&WantedFiles, &DiskState),
) -> BTreeSet<DeviceId> {
    let (given, before) = (given(&plan.offers), given(&known.offers));
    let is_delivered_alike = known.policy.delivery == wanted.policy.delivery;
    let is_as_before = |device: &Device| {
        let is_given = given.get(&device.id).is_none_or(|it| before.get(&device.id) == Some(it));
        let is_claimable =
            !plan.claimable.contains_key(&device.id) || may_be_claimed(known, device);
        let there = known.inventory.get(device.id.as_str());
        let is_itself = there.is_some_and(|there| is_same(there, device));
        is_given && is_claimable && is_itself && on_disk.has_current_info(device, wanted)
    };
    let devices = wanted.inventory.devices.iter().filter(|device| device.health.is_healthy());
    let may_be_had = |device: &&Device| {
        given.contains_key(&device.id) || plan.claimable.contains_key(&device.id)
    };
    let may_stay = |device: &&Device| {
        (is_delivered_alike && is_as_before(device)) || on_disk.covers(device, wanted)
    };
    devices.filter(may_be_had).filter(|it| !may_stay(it)).map(|device| device.id.clone()).collect()
}

/// True if a device lost its health, which is published without delay.
pub(super) fn is_worse(before: &Inventory, now: &Inventory) -> bool {
    let healthy = before.devices.iter().filter(|device| device.health.is_healthy());
    let is_healthy =
        |device: &Device| now.get(device.id.as_str()).is_some_and(|it| it.health.is_healthy());
    healthy.into_iter().any(|device| !is_healthy(device))
}

fn given(offers: &Offers) -> Given<'_> {
    let devices = offers.iter().flat_map(|(name, offer)| {
        let given = offer.devices.iter().filter(|(_, it)| !matches!(it.state, Allocatable::No(_)));
        given.map(move |(id, it)| (id, (name, it.sharing)))
    });
    devices.collect()
}

fn may_be_claimed(known: &NodeState, device: &Device) -> bool {
    known.is_claimable(&device.id) && known.obstacle(device).is_none()
}
