//! Feature gates: a server silently drops the fields of a disabled gate.

use serde_json::Value;

/// Feature gates of DRA that affect drivers, as in Kubernetes 1.36.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Gate {
    /// `DRAPartitionableDevices`: shared counters, and node selection per device.
    PartitionableDevices,
    /// `DRAConsumableCapacity`: devices shared by several claims.
    ConsumableCapacity,
    /// `DRADeviceTaints`.
    DeviceTaints,
    /// `DRADeviceBindingConditions`.
    DeviceBindingConditions,
    /// `DRAResourceClaimDeviceStatus`: device status in a claim's status.
    ResourceClaimDeviceStatus,
    /// `DRAExtendedResource`: device classes that serve extended resources.
    ExtendedResource,
    /// `DRAListTypeAttributes`; off in 1.36.
    ListTypeAttributes,
    /// `DRANodeAllocatableResources`; off in 1.36.
    NodeAllocatableResources,
}

/// Field paths, with `*` for each entry of a list or a map.
type Paths = &'static [&'static str];

// === impl Gate ===

impl Gate {
    /// Gates that are off in 1.36.
    pub const OFF_IN_1_36: [Self; 2] = [Self::ListTypeAttributes, Self::NodeAllocatableResources];

    /// Gates that are off in 1.34 and 1.35.
    pub const OFF_BEFORE_1_36: [Self; 7] = [
        Self::PartitionableDevices,
        Self::ConsumableCapacity,
        Self::DeviceTaints,
        Self::DeviceBindingConditions,
        Self::ExtendedResource,
        Self::ListTypeAttributes,
        Self::NodeAllocatableResources,
    ];

    /// Drops the gate's fields from the object, unless the old object uses one of them.
    pub(crate) fn drop_fields(self, resource: &str, object: &mut Value, old: Option<&Value>) {
        let paths = self.paths(resource);
        let in_use = |path: &&str| old.is_some_and(|old| has(old, path));
        if paths.iter().any(in_use) {
            return;
        }
        for path in paths {
            clear(object, path);
        }
    }

    fn paths(self, resource: &str) -> Paths {
        match (self, resource) {
            (Self::PartitionableDevices, "resourceslices") => &[
                "spec.sharedCounters",
                "spec.perDeviceNodeSelection",
                "spec.devices.*.consumesCounters",
                "spec.devices.*.nodeName",
                "spec.devices.*.nodeSelector",
                "spec.devices.*.allNodes",
            ],
            (Self::ConsumableCapacity, "resourceslices") => &[
                "spec.devices.*.allowMultipleAllocations",
                "spec.devices.*.capacity.*.requestPolicy",
            ],
            (Self::ConsumableCapacity, "resourceclaims") => &[
                "spec.devices.requests.*.exactly.capacity",
                "spec.devices.requests.*.firstAvailable.*.capacity",
                "spec.devices.constraints.*.distinctAttribute",
                "status.allocation.devices.results.*.shareID",
                "status.allocation.devices.results.*.consumedCapacity",
                "status.devices.*.shareID",
            ],
            (Self::DeviceTaints, "resourceslices") => &["spec.devices.*.taints"],
            (Self::DeviceTaints, "resourceclaims") => &[
                "spec.devices.requests.*.exactly.tolerations",
                "spec.devices.requests.*.firstAvailable.*.tolerations",
            ],
            (Self::DeviceBindingConditions, "resourceslices") => &[
                "spec.devices.*.bindingConditions",
                "spec.devices.*.bindingFailureConditions",
                "spec.devices.*.bindsToNode",
            ],
            (Self::ResourceClaimDeviceStatus, "resourceclaims") => &["status.devices"],
            (Self::ExtendedResource, "deviceclasses") => &["spec.extendedResourceName"],
            (Self::ListTypeAttributes, "resourceslices") => &[
                "spec.devices.*.attributes.*.bools",
                "spec.devices.*.attributes.*.ints",
                "spec.devices.*.attributes.*.strings",
                "spec.devices.*.attributes.*.versions",
            ],
            (Self::NodeAllocatableResources, "resourceslices") => {
                &["spec.devices.*.nodeAllocatableResourceMappings"]
            }
            _ => &[],
        }
    }
}

fn split(path: &str) -> (&str, Option<&str>) {
    path.split_once('.').map_or((path, None), |(head, tail)| (head, Some(tail)))
}

fn has(value: &Value, path: &str) -> bool {
    match split(path) {
        ("*", Some(tail)) => entries(value).any(|entry| has(entry, tail)),
        (key, Some(tail)) => has(&value[key], tail),
        (key, None) => !value[key].is_null(),
    }
}

fn entries(value: &Value) -> impl Iterator<Item = &Value> {
    let list = value.as_array().into_iter().flatten();
    list.chain(value.as_object().into_iter().flatten().map(|(_, entry)| entry))
}

fn clear(value: &mut Value, path: &str) {
    match (split(path), value) {
        (("*", Some(tail)), Value::Array(items)) => {
            for item in items {
                clear(item, tail);
            }
        }
        (("*", Some(tail)), Value::Object(fields)) => {
            for field in fields.values_mut() {
                clear(field, tail);
            }
        }
        ((key, Some(tail)), Value::Object(fields)) => {
            if let Some(field) = fields.get_mut(key) {
                clear(field, tail);
            }
        }
        ((key, None), Value::Object(fields)) => drop(fields.remove(key)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_of_a_disabled_gate_are_dropped_unless_the_old_object_has_them() {
        let slice = json!({"spec": {
            "perDeviceNodeSelection": true,
            "devices": [{"name": "a", "taints": [{"key": "t"}], "allNodes": true}],
        }});
        let mut dropped = slice.clone();
        Gate::PartitionableDevices.drop_fields("resourceslices", &mut dropped, None);
        assert_eq!(
            dropped,
            json!({"spec": {"devices": [{"name": "a", "taints": [{"key": "t"}]}]}})
        );
        let mut kept = slice.clone();
        Gate::DeviceTaints.drop_fields("resourceslices", &mut kept, Some(&slice));
        assert_eq!(kept, slice);
    }
}
