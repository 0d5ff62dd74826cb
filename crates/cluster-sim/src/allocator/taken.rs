//! Allocated devices and consumed capacity of all claims.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::resource::v1::{DeviceRequestAllocationResult, ResourceClaim};
use windlass_core::selector::Amount;

use super::{DeviceId, capacity};

/// Amount by capacity name.
pub(super) type Consumed = BTreeMap<String, Amount>;

/// Devices allocated as a whole, and consumed capacity of shared ones.
#[derive(Debug, Default)]
pub(super) struct Taken {
    pub(super) whole: BTreeSet<DeviceId>,
    pub(super) shared: BTreeMap<DeviceId, Consumed>,
}

// === impl Taken ===

impl Taken {
    pub(super) fn of(claims: &[ResourceClaim]) -> Self {
        let mut taken = Self::default();
        for result in claims.iter().flat_map(results) {
            // Admin access allocates nothing.
            if result.admin_access != Some(true) {
                taken.add(result);
            }
        }
        taken
    }

    fn add(&mut self, result: &DeviceRequestAllocationResult) {
        let id = DeviceId::of(result);
        if result.share_id.is_none() {
            self.whole.insert(id);
            return;
        }
        let consumed = self.shared.entry(id).or_default();
        for (name, amount) in result.consumed_capacity.iter().flatten() {
            let sum = consumed.entry(name.clone()).or_insert(Amount::ZERO);
            *sum = sum.saturating_add(capacity::amount(amount));
        }
    }

    /// True if a claim has the device or a share of it.
    pub(super) fn touches(&self, id: &DeviceId) -> bool {
        self.whole.contains(id) || self.shared.contains_key(id)
    }
}

// === impl DeviceId ===

impl DeviceId {
    fn of(result: &DeviceRequestAllocationResult) -> Self {
        Self {
            driver: result.driver.clone(),
            pool: result.pool.clone(),
            device: result.device.clone(),
        }
    }
}

fn results(claim: &ResourceClaim) -> impl Iterator<Item = &DeviceRequestAllocationResult> {
    let allocation = claim.status.iter().flat_map(|status| &status.allocation);
    let devices = allocation.flat_map(|allocation| &allocation.devices);
    devices.flat_map(|devices| devices.results.iter().flatten())
}
