//! Which devices wait for the disk: those that would be offered anew, or otherwise than before, and of which what is
//! wanted on the disk is not there yet. What was offered and is as it was stays offered, however long a disk hangs.

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

use super::disk::{Found, Wanted, is_same};

/// The resource that each device may be had through, and how it is shared.
type Given<'a> = BTreeMap<&'a DeviceId, (&'a ResourceName, Sharing)>;

/// The devices that a plan would give away before all is on the disk.
pub(super) fn late(
    plan: &Plan,
    known: &NodeState,
    (wanted, found): (&Wanted, &Found),
) -> BTreeSet<DeviceId> {
    let (given, before) = (given(&plan.offers), given(&known.offers));
    let is_delivered_alike = known.policy.delivery == wanted.policy.delivery;
    let is_as_before = |device: &Device| {
        let is_given = given.get(&device.id).is_none_or(|it| before.get(&device.id) == Some(it));
        let is_claimable =
            !plan.claimable.contains_key(&device.id) || may_be_claimed(known, device);
        let there = known.inventory.get(device.id.as_str());
        let is_itself = there.is_some_and(|there| is_same(there, device));
        is_given && is_claimable && is_itself && found.tells(device, wanted)
    };
    let devices = wanted.inventory.devices.iter().filter(|device| device.health.is_healthy());
    let may_be_had = |device: &&Device| {
        given.contains_key(&device.id) || plan.claimable.contains_key(&device.id)
    };
    let may_stay = |device: &&Device| {
        (is_delivered_alike && is_as_before(device)) || found.covers(device, wanted)
    };
    devices.filter(may_be_had).filter(|it| !may_stay(it)).map(|device| device.id.clone()).collect()
}

/// Whether a device is healthy no longer that was: that is told whatever waits.
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
