//! What the reconciler has other parts do: MPS daemons, and steps between two containers; and why a device waits for
//! either.

use windlass_allocations::ledger::Ledger;
use windlass_config::{Replicas, Shared, Sharing, SharingMethod};
use windlass_core::{
    device::{Device, DeviceId},
    inventory::Inventory,
};
use windlass_lifecycle::{
    cleanup::{Demand, HandoverStates},
    mps::{MpsDemand, MpsState, MpsStates, MpsWant, MpsWants},
};
use windlass_resources::offers::Plan;

use super::held::Holdings;

/// Which daemons are wanted. One stays while the device fails, while containers hold replicas of a device that is to
/// be shared no longer, and while claims may have shares of it: its end is the end of their programs.
pub(super) fn daemons(
    (plan, inventory): (&Plan, &Inventory),
    ledger: &Ledger,
    holdings: &Holdings,
    known: &MpsDemand,
) -> MpsDemand {
    let wanted = plan.mps.iter().filter_map(|(id, replicas)| {
        Some((id.clone(), MpsWant::new(inventory.get(id.as_str())?, *replicas)))
    });
    let by_claims = Ledger::daemons(ledger.claims());
    let want = |id: &DeviceId| {
        Some((id.clone(), MpsWant::new(inventory.get(id.as_str())?, Replicas::ONE)))
    };
    let wanted: MpsWants = by_claims.surely.iter().filter_map(want).chain(wanted).collect();
    let mut kept = holdings.shared_devices();
    kept.extend(by_claims.surely.into_iter().chain(by_claims.perhaps));
    if ledger.is_hearsay() {
        kept.extend(ledger.claims().keys().cloned());
    }
    if plan.waiting {
        kept.extend(known.wanted.keys().chain(&known.kept).cloned());
    }
    kept.retain(|id| !wanted.contains_key(id));
    MpsDemand { wanted, kept }
}

/// Why a device that is shared by MPS has no daemon to serve it.
pub(super) fn daemon_trouble(
    daemons: &MpsStates,
    device: &Device,
    sharing: Sharing,
) -> Option<String> {
    match sharing {
        Sharing::Shared(Shared { method: SharingMethod::Mps, .. }) => {
            daemons.get(&device.id).unwrap_or(&MpsState::Starting).trouble()
        }
        Sharing::Shared(_) | Sharing::Pooled(_) | Sharing::Exclusive => None,
    }
}

/// Why a device is not to be given away before something is done to it.
pub(super) fn handover_trouble(
    states: &HandoverStates,
    care: &Demand,
    id: &DeviceId,
) -> Option<String> {
    care.get(id)?;
    match states.get(id) {
        Some(state) => state.trouble(),
        None => Some("hand-over: what was left on it is being looked up".to_owned()),
    }
}
