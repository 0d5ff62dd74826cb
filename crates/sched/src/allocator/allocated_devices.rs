//! Devices and capacity that allocated claims hold.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{
    AllocationResult, DeviceRequestAllocationResult, ResourceClaim,
};
use windlass_core::selector::Amount;

use super::{PoolId, capacity, pool::Pool};

/// Devices that allocated claims hold, whole or in shares.
///
/// A value may cover one node or the whole cluster: a search reads only the pools of its node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllocatedDevices {
    pools: BTreeMap<PoolId, Holdings>,
}

/// Allocations of the devices of one pool, by device name.
pub(super) type Holdings = BTreeMap<String, Holding>;

/// Allocations of one device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Holding {
    /// Number of allocations of the whole device; more than one if two schedulers chose it. Each ends independently.
    pub(super) whole: usize,
    /// Number of allocated shares.
    pub(super) shares: usize,
    /// Capacity that all shares consume.
    pub(super) consumed: Consumed,
}

/// Amount by capacity name.
pub(super) type Consumed = BTreeMap<String, Amount>;

// === impl AllocatedDevices ===

impl AllocatedDevices {
    /// Devices of these claims. Claims without an allocation are ignored.
    pub fn of<'a>(claims: impl IntoIterator<Item = &'a ResourceClaim>) -> Self {
        let mut allocated = Self::default();
        let statuses = claims.into_iter().filter_map(|claim| claim.status.as_ref());
        statuses.filter_map(|status| status.allocation.as_ref()).for_each(|it| allocated.add(it));
        allocated
    }

    /// Adds the allocation of a claim, such as a result of [`Claims::allocate`](super::Claims::allocate). Devices for
    /// admin access stay free.
    pub fn add(&mut self, allocation: &AllocationResult) {
        for result in held_devices(allocation) {
            let holding = self.pools.entry(PoolId::of_result(result)).or_default();
            let holding = holding.entry(result.device.clone()).or_default();
            holding.change(result, usize::saturating_add, Amount::saturating_add);
        }
    }

    /// Removes an allocation that was added before. Other allocations of the same devices are unchanged.
    pub fn remove(&mut self, allocation: &AllocationResult) {
        for result in held_devices(allocation) {
            let pool = PoolId::of_result(result);
            let Some(holdings) = self.pools.get_mut(&pool) else { continue };
            let Some(holding) = holdings.get_mut(&result.device) else { continue };
            holding.change(result, usize::saturating_sub, Amount::saturating_sub);
            if holding.whole == 0 && holding.shares == 0 {
                holdings.remove(&result.device);
            }
            if holdings.is_empty() {
                self.pools.remove(&pool);
            }
        }
    }

    /// For each of the pools: the allocations of its devices.
    pub(super) fn of_pools(&self, pools: &[Pool]) -> Vec<Option<&Holdings>> {
        pools.iter().map(|pool| self.of_pool(&pool.id)).collect()
    }

    fn of_pool(&self, pool: &PoolId) -> Option<&Holdings> {
        self.pools.get(pool)
    }
}

// === impl Holding ===

impl Holding {
    fn change(
        &mut self,
        result: &DeviceRequestAllocationResult,
        count: fn(usize, usize) -> usize,
        sum: fn(Amount, Amount) -> Amount,
    ) {
        if result.share_id.is_none() {
            self.whole = count(self.whole, 1);
            return;
        }
        self.shares = count(self.shares, 1);
        for (name, amount) in result.consumed_capacity.iter().flatten() {
            let consumed = self.consumed.entry(name.clone()).or_insert(Amount::ZERO);
            *consumed = sum(*consumed, capacity::amount(amount));
        }
    }
}

/// Results that hold a device. Results for admin access hold none.
pub fn held_devices(
    allocation: &AllocationResult,
) -> impl Iterator<Item = &DeviceRequestAllocationResult> {
    let results = allocation.devices.iter().flat_map(|devices| devices.results.iter().flatten());
    results.filter(|result| result.admin_access != Some(true))
}
