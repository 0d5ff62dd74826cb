//! Candidates: the devices that the search may choose.

use std::sync::{Arc, OnceLock};

use k8s_openapi::api::{
    core::v1::Node,
    resource::v1::{Device, DeviceTaint, ResourceSlice},
};
use windlass_core::{
    attribute::{AttributeName, AttributeValue},
    selector::{PreparedDevice, PublishedDevice},
};

use super::{capacity, counters::CounterConsumption, node_affinity, pool::Contents};

/// A device of a complete and valid pool.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) slice: Arc<ResourceSlice>,
    /// Index of the device in its slice.
    index: usize,
    /// Index of the device's pool in [`Pools::all`](super::pools::Pools).
    pub(super) pool: usize,
    /// Value of `device` in CEL expressions, built on first use.
    cel_device: OnceLock<PreparedDevice>,
    /// True unless the device has its own node selection and the node does not match it.
    pub(super) is_on_node: bool,
    /// Counters that the device consumes.
    pub(super) consumptions: Vec<CounterConsumption>,
}

// === impl Candidate ===

impl Candidate {
    pub(super) fn of(
        (pool, contents): (usize, &Contents),
        (slice, index): (&Arc<ResourceSlice>, usize),
        node: &Node,
    ) -> Self {
        let device = &slice.spec.devices.as_deref().unwrap_or_default()[index];
        let is_on_node =
            !node_affinity::is_per_device(slice) || node_affinity::device_matches(device, node);
        let consumptions = contents.counter_sets.consumptions(device);
        let (slice, cel_device) = (Arc::clone(slice), OnceLock::new());
        Self { slice, index, pool, cel_device, is_on_node, consumptions }
    }

    pub(super) fn device(&self) -> &Device {
        &self.slice.spec.devices.as_deref().unwrap_or_default()[self.index]
    }

    pub(super) fn driver(&self) -> &str {
        &self.slice.spec.driver
    }

    /// The value of `device` in CEL expressions.
    pub(super) fn cel_device(&self) -> &PreparedDevice {
        self.cel_device.get_or_init(|| PreparedDevice::from(&self.published()))
    }

    fn published(&self) -> PublishedDevice {
        let (device, driver) = (self.device(), self.driver());
        let name = |name: &String| AttributeName::from_slice_name(driver, name);
        let attributes = device.attributes.iter().flatten().filter_map(|(key, value)| {
            let string = value.string.clone().map(AttributeValue::String);
            let version = || value.version.clone().map(AttributeValue::Version);
            let int = || value.int.map(AttributeValue::Int);
            let bool = || value.bool.map(AttributeValue::Bool);
            Some((name(key), string.or_else(version).or_else(int).or_else(bool)?))
        });
        let capacities = device.capacity.iter().flatten();
        PublishedDevice {
            id: format!("{driver}/{}/{}", self.slice.spec.pool.name, device.name),
            driver: driver.to_owned(),
            attributes: attributes.collect(),
            capacity: capacities.map(|(k, c)| (name(k), capacity::amount(&c.value))).collect(),
            allow_multiple_allocations: device.allow_multiple_allocations == Some(true),
        }
    }

    /// Taints that exclude claims without a toleration.
    pub(super) fn taints(&self) -> impl Iterator<Item = &DeviceTaint> {
        let excludes = |taint: &&DeviceTaint| ["NoSchedule", "NoExecute"].contains(&&*taint.effect);
        self.device().taints.iter().flatten().filter(excludes)
    }

    /// True if several claims may hold shares of the device.
    pub(super) fn is_shared(&self) -> bool {
        self.device().allow_multiple_allocations == Some(true)
    }
}
