//! Content of a ResourceSlice, compared as the API server does: quantities are equal by value in any spelling, and the
//! time of a taint is ignored.

use k8s_openapi::{
    api::resource::v1::{
        CapacityRequestPolicy, CounterSet, Device, DeviceTaint, ResourceSlice, ResourceSliceSpec,
    },
    apimachinery::pkg::api::resource::Quantity,
};
use windlass_core::selector::Amount;

/// Content of a slice: devices, or counter sets from which devices of the pool consume.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SliceContent {
    /// Devices in the order in which the scheduler tries them.
    pub devices: Vec<Device>,
    /// Counter sets that devices consume.
    pub shared_counters: Vec<CounterSet>,
}

// === impl SliceContent ===

impl SliceContent {
    pub(super) fn of(slice: &ResourceSlice) -> Self {
        Self {
            devices: slice.spec.devices.clone().unwrap_or_default(),
            shared_counters: slice.spec.shared_counters.clone().unwrap_or_default(),
        }
    }

    /// Sets the content of a slice. Taints that the slice already has keep their time.
    pub(super) fn apply_to(&self, spec: &mut ResourceSliceSpec) {
        let existing = spec.devices.take().unwrap_or_default();
        let devices = self.devices.iter().cloned();
        let devices = devices.map(|device| with_taint_times(device, &existing));
        let devices: Vec<_> = devices.collect();
        // A slice has devices or counters; an empty pool's slice has no devices at all.
        spec.devices = Some(devices).filter(|devices| !devices.is_empty());
        let counters = Some(self.shared_counters.clone());
        spec.shared_counters = counters.filter(|counters| !counters.is_empty());
    }

    /// True if the API server treats both contents as equal.
    pub(super) fn is_same_as(&self, other: &Self) -> bool {
        self.normalized() == other.normalized()
    }

    /// The content with quantities in nano units and without times of taints.
    pub(super) fn normalized(&self) -> Self {
        let mut normalized = self.clone();
        normalized.devices.iter_mut().for_each(normalize_device);
        let sets = normalized.shared_counters.iter_mut();
        sets.flat_map(|set| set.counters.values_mut())
            .for_each(|counter| normalize(&mut counter.value));
        normalized
    }
}

/// The device, whose taints have the times of equal taints in `existing`.
fn with_taint_times(mut device: Device, existing: &[Device]) -> Device {
    let Some(previous) = existing.iter().find(|existing| existing.name == device.name) else {
        return device;
    };
    let previous_taints = previous.taints.iter().flatten();
    let is_same = |taint: &DeviceTaint, other: &DeviceTaint| {
        (&taint.key, &taint.value, &taint.effect) == (&other.key, &other.value, &other.effect)
    };
    for taint in device.taints.iter_mut().flatten().filter(|taint| taint.time_added.is_none()) {
        let unchanged = previous_taints.clone().find(|existing| is_same(existing, taint));
        taint.time_added = unchanged.and_then(|existing| existing.time_added.clone());
    }
    device
}

fn normalize_device(device: &mut Device) {
    device.attributes.take_if(|attributes| attributes.is_empty());
    device.capacity.take_if(|capacity| capacity.is_empty());
    device.taints.take_if(|taints| taints.is_empty());
    device.consumes_counters.take_if(|consumed| consumed.is_empty());
    device.taints.iter_mut().flatten().for_each(|taint| taint.time_added = None);
    for capacity in device.capacity.iter_mut().flat_map(|capacity| capacity.values_mut()) {
        normalize(&mut capacity.value);
        capacity.request_policy.iter_mut().flat_map(amounts).for_each(normalize);
    }
    let consumed = device.consumes_counters.iter_mut().flatten();
    consumed
        .flat_map(|consumed| consumed.counters.values_mut())
        .for_each(|counter| normalize(&mut counter.value));
}

fn amounts(policy: &mut CapacityRequestPolicy) -> impl Iterator<Item = &mut Quantity> {
    let range = policy.valid_range.iter_mut();
    let range =
        range.flat_map(|range| [Some(&mut range.min), range.max.as_mut(), range.step.as_mut()]);
    let values = policy.valid_values.iter_mut().flatten();
    policy.default.iter_mut().chain(values).chain(range.flatten())
}

/// Converts a quantity to nano units. A text that is not a quantity is unchanged.
fn normalize(Quantity(text): &mut Quantity) {
    if let Some(amount) = Amount::parse(text) {
        *text = format!("{}n", amount.nano_units());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn content(memory: &str, taint_time: Option<&str>) -> SliceContent {
        let taint = json!({
            "key": "windlass.dev/unhealthy", "value": "xid-79", "effect": "NoSchedule",
            "timeAdded": taint_time,
        });
        let capacity = json!({"gpu.nvidia.com/memory": {"value": memory}});
        let device = json!({"name": "gpu-0", "capacity": capacity, "taints": [taint]});
        let devices = vec![serde_json::from_value(device).expect("a device")];
        SliceContent { devices, ..SliceContent::default() }
    }

    #[test]
    fn spelling_of_a_quantity_and_time_of_a_taint_make_no_difference() {
        let now = Some("2026-01-02T03:04:05Z");
        assert!(content("80Gi", None).is_same_as(&content("81920Mi", now)));
        assert!(!content("80Gi", None).is_same_as(&content("80G", None)));
        let mut two = content("80Gi", None);
        two.devices.push(Device { name: "gpu-1".to_owned(), ..Device::default() });
        let mut swapped = two.clone();
        swapped.devices.swap(0, 1);
        assert!(!two.is_same_as(&swapped), "order is priority");
    }

    #[test]
    fn a_taint_that_stays_keeps_its_time() {
        let published = content("80Gi", Some("2026-01-02T03:04:05Z"));
        let mut spec = ResourceSliceSpec { devices: Some(published.devices), ..Default::default() };
        content("40Gi", None).apply_to(&mut spec);
        let device = &spec.devices.as_ref().expect("devices")[0];
        let taint = &device.taints.as_ref().expect("taints")[0];
        assert!(taint.time_added.is_some());
        assert_eq!(
            device.capacity.as_ref().expect("a capacity")["gpu.nvidia.com/memory"].value.0,
            "40Gi"
        );
    }
}
