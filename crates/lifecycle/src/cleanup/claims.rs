//! Claims as tenants: they announce their start and their release.

use tokio::time::Instant;
use windlass_allocations::ledger::Ledger;
use windlass_core::device::DeviceId;

use super::{
    Cleanup,
    handle::NewTenant,
    state::{Input, claim_tenant},
};

/// Input of the state machine for the start of a tenant.
pub(super) fn start_input(tenant: &NewTenant, ledger: &Ledger, device: &DeviceId) -> Input {
    match tenant {
        NewTenant::Pods(tenants) => Input::Start(tenants.clone()),
        NewTenant::Claim(claim) => {
            let claims = claims_of(ledger, device).chain([claim.clone()]).collect();
            Input::StartClaim { claim: claim.clone(), claims }
        }
    }
}

/// Claims that hold the device, as tenants.
pub(super) fn claims_of<'a>(
    ledger: &'a Ledger,
    device: &DeviceId,
) -> impl Iterator<Item = String> + use<'a> {
    ledger.claim_uids(device).map(claim_tenant)
}

// === impl Cleanup ===

impl Cleanup {
    /// Applies the release of a claim: to a device with running steps once the steps have ended.
    pub(super) fn release_claim(&mut self, claim: &str) {
        let is_released = |tenant: &String| tenant == claim;
        let mut released = Vec::new();
        for (id, slot) in &mut self.slots {
            if !slot.state.tenants().is_some_and(|tenants| tenants.iter().any(is_released)) {
                continue;
            }
            slot.last_change = Instant::now();
            if self.running_steps.is_busy(id) {
                slot.pending_releases.push(claim.to_owned());
            } else {
                released.push(id.clone());
            }
        }
        for id in released {
            self.apply_input(&id, Input::ReleaseClaim(claim.to_owned()));
        }
    }

    /// Applies the releases that were announced while steps of the device ran.
    pub(super) fn apply_pending_releases(&mut self, id: &DeviceId) {
        if self.running_steps.is_busy(id) {
            return;
        }
        let claims = self.slots.get_mut(id).map(|slot| std::mem::take(&mut slot.pending_releases));
        for claim in claims.unwrap_or_default() {
            self.apply_input(id, Input::ReleaseClaim(claim));
        }
    }
}
