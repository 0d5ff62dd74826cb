//! Candidates: the devices that may be chosen.

use std::sync::Arc;

use k8s_openapi::api::{
    core::v1::Node,
    resource::v1::{Device, DeviceTaint, ResourceSlice},
};
use windlass_core::{
    attribute::{AttributeName, AttributeValue},
    selector::{PreparedDevice, PublishedDevice},
};

use super::{PoolId, capacity, counters::Draw, place, pool::Contents};

/// Device of a complete and valid pool.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) slice: Arc<ResourceSlice>,
    /// Index in its slice.
    index: usize,
    /// Index of its pool.
    pub(super) pool: usize,
    /// Value of `device` in expressions.
    pub(super) facts: PreparedDevice,
    /// True if its own node selection, if any, admits the node.
    pub(super) is_here: bool,
    /// Counters that it consumes.
    pub(super) draws: Vec<Draw>,
}

// === impl Candidate ===

impl Candidate {
    pub(super) fn of(
        (pool, id, contents): (usize, &PoolId, &Contents),
        (slice, index): (&Arc<ResourceSlice>, usize),
        node: &Node,
    ) -> Self {
        let device = &slice.spec.devices.as_deref().unwrap_or_default()[index];
        let name = |name: &String| AttributeName::published(&id.driver, name);
        let attributes = device.attributes.iter().flatten().filter_map(|(key, value)| {
            let string = value.string.clone().map(AttributeValue::String);
            let version = || value.version.clone().map(AttributeValue::Version);
            let int = || value.int.map(AttributeValue::Int);
            let bool = || value.bool.map(AttributeValue::Bool);
            Some((name(key), string.or_else(version).or_else(int).or_else(bool)?))
        });
        let capacities = device.capacity.iter().flatten();
        let facts = PublishedDevice {
            id: format!("{id}/{}", device.name),
            driver: id.driver.clone(),
            attributes: attributes.collect(),
            capacity: capacities.map(|(k, c)| (name(k), capacity::amount(&c.value))).collect(),
            allow_multiple_allocations: device.allow_multiple_allocations == Some(true),
        };
        let is_here = !place::is_by_device(slice) || place::device_matches(device, node);
        let draws = contents.stock.draws(device);
        let facts = PreparedDevice::from(&facts);
        Self { slice: Arc::clone(slice), index, pool, facts, is_here, draws }
    }

    pub(super) fn device(&self) -> &Device {
        &self.slice.spec.devices.as_deref().unwrap_or_default()[self.index]
    }

    pub(super) fn taints(&self) -> &[DeviceTaint] {
        self.device().taints.as_deref().unwrap_or_default()
    }

    /// True if several claims may have a share of it.
    pub(super) fn is_shared(&self) -> bool {
        self.device().allow_multiple_allocations == Some(true)
    }
}
