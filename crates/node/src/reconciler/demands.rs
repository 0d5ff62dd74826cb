//! MPS daemons and cleanup: the reconciler's demand for both, and the obstacles of devices that wait for them.

use windlass_allocations::ledger::Ledger;
use windlass_config::{Replicas, Shared, Sharing, SharingMethod};
use windlass_core::{
    device::{Device, DeviceId},
    inventory::Inventory,
};
use windlass_lifecycle::{
    cleanup::{CleanupPlans, CleanupStates},
    mps::{MpsDemand, MpsSpec, MpsSpecs, MpsState, MpsStates},
};
use windlass_resources::offers::Plan;

use super::holdings::Holdings;

/// Demand for MPS daemons. A daemon is retained while its device fails, while containers hold replicas, and while
/// claims may hold shares: stopping it kills their programs.
pub(super) fn mps_demand(
    (plan, inventory): (&Plan, &Inventory),
    ledger: &Ledger,
    holdings: &Holdings,
    previous: &MpsDemand,
) -> MpsDemand {
    let required = plan.mps.iter().filter_map(|(id, shared)| {
        let spec = MpsSpec::new(inventory.get(id.as_str())?, shared.replicas);
        Some((id.clone(), MpsSpec { memory_mib: shared.memory_mib, ..spec }))
    });
    let by_claims = Ledger::mps_devices(ledger.claims());
    let spec_for_claim = |id: &DeviceId| {
        Some((id.clone(), MpsSpec::new(inventory.get(id.as_str())?, Replicas::ONE)))
    };
    let required: MpsSpecs =
        by_claims.required.iter().filter_map(spec_for_claim).chain(required).collect();
    let mut retained = holdings.shared_devices();
    retained.extend(by_claims.required.into_iter().chain(by_claims.possible));
    if ledger.knows_claims_from_kubelet_only() {
        retained.extend(ledger.claims().keys().cloned());
    }
    if plan.has_pending_moves {
        retained.extend(previous.required.keys().chain(&previous.retained).cloned());
    }
    retained.retain(|id| !required.contains_key(id));
    MpsDemand { required, retained }
}

/// Obstacle of an MPS device without a ready daemon.
pub(super) fn daemon_obstacle(
    daemons: &MpsStates,
    device: &Device,
    sharing: Sharing,
) -> Option<String> {
    match sharing {
        Sharing::Shared(Shared { method: SharingMethod::Mps, .. }) => {
            daemons.get(&device.id).unwrap_or(&MpsState::Starting).obstacle()
        }
        Sharing::Shared(_) | Sharing::Pooled(_) | Sharing::Exclusive => None,
    }
}

/// Obstacle of a device that waits for cleanup.
pub(super) fn cleanup_obstacle(
    states: &CleanupStates,
    cleanup_demand: &CleanupPlans,
    id: &DeviceId,
) -> Option<String> {
    cleanup_demand.get(id)?;
    match states.get(id) {
        Some(state) => state.obstacle(),
        None => Some("cleanup: the previous state is being restored".to_owned()),
    }
}
