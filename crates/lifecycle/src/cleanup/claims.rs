//! Claims as tenants: they come when they are prepared, and say themselves when they let go.

use tokio::time::Instant;
use windlass_allocations::ledger::Ledger;
use windlass_core::device::DeviceId;

use super::{
    Handovers,
    desk::Newcomer,
    state::{Input, claim_tenant},
};

/// What a start is for the device's state.
pub(super) fn starting(newcomer: &Newcomer, ledger: &Ledger, device: &DeviceId) -> Input {
    match newcomer {
        Newcomer::Pods(tenants) => Input::Start(tenants.clone()),
        Newcomer::Claim(claim) => {
            let claims = claims_of(ledger, device).chain([claim.clone()]).collect();
            Input::Join { claim: claim.clone(), claims }
        }
    }
}

/// The claims that have a device, as tenants.
pub(super) fn claims_of<'a>(
    ledger: &'a Ledger,
    device: &DeviceId,
) -> impl Iterator<Item = String> + use<'a> {
    ledger.users(device).map(claim_tenant)
}

// === impl Handovers ===

impl Handovers {
    /// A claim has let go of whatever it had. Where something is under way it has by the time that is done.
    pub(super) fn leave(&mut self, claim: &str) {
        let has_it = |tenant: &String| tenant == claim;
        let mut left = Vec::new();
        for (id, slot) in &mut self.slots {
            if !slot.state.tenants().is_some_and(|all| all.iter().any(has_it)) {
                continue;
            }
            slot.changed = Instant::now();
            if self.work.is_busy(id) {
                slot.leaving.push(claim.to_owned());
            } else {
                left.push(id.clone());
            }
        }
        for id in left {
            self.advance(&id, Input::Leave(claim.to_owned()));
        }
    }

    /// Claims have let go while something was under way that is done.
    pub(super) fn leave_late(&mut self, id: &DeviceId) {
        if self.work.is_busy(id) {
            return;
        }
        let leaving = self.slots.get_mut(id).map(|slot| std::mem::take(&mut slot.leaving));
        for claim in leaving.unwrap_or_default() {
            self.advance(id, Input::Leave(claim));
        }
    }
}
