//! Candidates: the devices that may be chosen, in order.

use k8s_openapi::api::resource::v1::{Device, ResourceSlice};
use windlass_core::{
    attribute::{AttributeName, AttributeValue},
    selector::PublishedDevice,
};

use super::{
    DeviceId, capacity,
    pool::{Pool, State},
};

/// Device of a complete and valid pool.
#[derive(Debug)]
pub(super) struct Candidate<'a> {
    pub(super) id: DeviceId,
    pub(super) device: &'a Device,
    pub(super) slice: &'a ResourceSlice,
    /// Index of its pool.
    pub(super) pool: usize,
    /// Attributes that expressions see.
    pub(super) facts: PublishedDevice,
}

/// Devices of all pools, in the order in which they are tried.
pub(super) fn candidates<'a>(pools: &[Pool<'a>]) -> Vec<Candidate<'a>> {
    let mut candidates = Vec::new();
    for (pool, Pool { state, .. }) in pools.iter().enumerate() {
        let State::Ready(contents) = state else { continue };
        for slice in &contents.here {
            let devices = slice.spec.devices.iter().flatten();
            candidates.extend(devices.map(|device| Candidate::of(pool, slice, device)));
        }
    }
    candidates
}

// === impl Candidate ===

impl<'a> Candidate<'a> {
    fn of(pool: usize, slice: &'a ResourceSlice, device: &'a Device) -> Self {
        let driver = &slice.spec.driver;
        let id = DeviceId {
            driver: driver.clone(),
            pool: slice.spec.pool.name.clone(),
            device: device.name.clone(),
        };
        let name = |name: &String| AttributeName::published(driver, name);
        let attributes = device.attributes.iter().flatten().filter_map(|(key, value)| {
            let string = value.string.clone().map(AttributeValue::String);
            let version = || value.version.clone().map(AttributeValue::Version);
            let int = || value.int.map(AttributeValue::Int);
            let bool = || value.bool.map(AttributeValue::Bool);
            Some((name(key), string.or_else(version).or_else(int).or_else(bool)?))
        });
        let capacities = device.capacity.iter().flatten();
        let facts = PublishedDevice {
            id: id.to_string(),
            driver: driver.clone(),
            attributes: attributes.collect(),
            capacity: capacities.map(|(k, c)| (name(k), capacity::amount(&c.value))).collect(),
            allow_multiple_allocations: device.allow_multiple_allocations == Some(true),
        };
        Self { id, device, slice, pool, facts }
    }
}
