//! Counters that partitions of a device share.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{Device, ResourceSlice};
use windlass_core::selector::Amount;

use super::{
    DeviceId, capacity,
    pool::{Contents, Pool, State},
    taken::Taken,
};

/// Remaining value of each counter of each pool.
#[derive(Debug)]
pub(super) struct Counters {
    left: Vec<Left>,
}

/// By set and counter; may be negative.
type Left = BTreeMap<(String, String), Amount>;

// === impl Counters ===

impl Counters {
    /// Counters after the consumption of allocated devices.
    pub(super) fn of(pools: &[Pool<'_>], taken: &Taken) -> Self {
        Self { left: pools.iter().map(|pool| left(pool, taken)).collect() }
    }

    /// Consumes a device's counters, unless its pool has too little of one.
    pub(super) fn take(&mut self, pool: usize, device: &Device) -> bool {
        self.change(pool, device, Amount::saturating_sub);
        let enough = self.left[pool].values().all(|left| *left >= Amount::ZERO);
        if !enough {
            self.give_back(pool, device);
        }
        enough
    }

    pub(super) fn give_back(&mut self, pool: usize, device: &Device) {
        self.change(pool, device, Amount::saturating_add);
    }

    fn change(&mut self, pool: usize, device: &Device, by: fn(Amount, Amount) -> Amount) {
        consume(&mut self.left[pool], device, by);
    }
}

fn left(pool: &Pool<'_>, taken: &Taken) -> Left {
    let State::Ready(contents) = &pool.state else { return Left::new() };
    let mut left = Left::new();
    for (set, counters) in &contents.counters {
        for (name, counter) in *counters {
            let key = ((*set).to_owned(), name.clone());
            left.insert(key, capacity::amount(&counter.value));
        }
    }
    for (slice, device) in devices(contents) {
        let id = DeviceId {
            driver: slice.spec.driver.clone(),
            pool: slice.spec.pool.name.clone(),
            device: device.name.clone(),
        };
        if taken.touches(&id) {
            consume(&mut left, device, Amount::saturating_sub);
        }
    }
    // Allocated claims may overdraw a counter. An overdrawn counter blocks further devices, without an error.
    left
}

fn devices<'a>(contents: &Contents<'a>) -> impl Iterator<Item = (&'a ResourceSlice, &'a Device)> {
    let slices: Vec<_> = contents.here.iter().chain(&contents.elsewhere).copied().collect();
    slices
        .into_iter()
        .flat_map(|slice| slice.spec.devices.iter().flatten().map(move |device| (slice, device)))
}

fn consume(left: &mut Left, device: &Device, by: fn(Amount, Amount) -> Amount) {
    for consumption in device.consumes_counters.iter().flatten() {
        for (name, counter) in &consumption.counters {
            let key = (consumption.counter_set.clone(), name.clone());
            if let Some(left) = left.get_mut(&key) {
                *left = by(*left, capacity::amount(&counter.value));
            }
        }
    }
}
