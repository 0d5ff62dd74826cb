//! Fields of a slice that the API server drops silently because their feature gate is disabled.

use std::{collections::BTreeSet, fmt};

use k8s_openapi::api::resource::v1::{Device, DeviceAttribute, DeviceCapacity};

use super::SliceContent;

/// Groups of dropped fields, by feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DroppedFields {
    /// Sharing of a device by several claims.
    Sharing,
    /// Taints of devices.
    Taints,
    /// Counters that devices consume.
    Counters,
    /// Conditions for the binding of a pod.
    Binding,
    /// Attributes with several values.
    Lists,
    /// Use of the node's own resources.
    NodeResources,
    /// Any other field.
    Other,
}

// === impl DroppedFields ===

impl DroppedFields {
    /// Names of the fields.
    pub fn fields(self) -> &'static str {
        match self {
            Self::Sharing => "allowMultipleAllocations, requestPolicy",
            Self::Taints => "taints",
            Self::Counters => "sharedCounters, consumesCounters",
            Self::Binding => "bindsToNode, bindingConditions, bindingFailureConditions",
            Self::Lists => "attributes with lists",
            Self::NodeResources => "nodeAllocatableResourceMappings",
            Self::Other => "other fields",
        }
    }

    /// Feature gate of the API server that enables the fields.
    pub fn gate(self) -> Option<&'static str> {
        match self {
            Self::Sharing => Some("DRAConsumableCapacity"),
            Self::Taints => Some("DRADeviceTaints"),
            Self::Counters => Some("DRAPartitionableDevices"),
            Self::Binding => Some("DRADeviceBindingConditions"),
            Self::Lists => Some("DRAListTypeAttributes"),
            Self::NodeResources => Some("DRANodeAllocatableResources"),
            Self::Other => None,
        }
    }

    /// Fields that were sent and are missing in the stored content.
    pub(super) fn between(sent: &SliceContent, stored: &SliceContent) -> BTreeSet<Self> {
        let (sent, stored) = (sent.normalized(), stored.normalized());
        let mut dropped = BTreeSet::new();
        if sent.shared_counters != stored.shared_counters {
            dropped.insert(Self::Counters);
        }
        let is_other = |(sent, stored): (&Device, &Device)| sent.name != stored.name;
        let devices = || sent.devices.iter().zip(&stored.devices);
        if sent.devices.len() != stored.devices.len() || devices().any(is_other) {
            dropped.insert(Self::Other);
            return dropped;
        }
        dropped
            .extend(devices().filter(|(sent, stored)| sent != stored).flat_map(dropped_by_device));
        dropped
    }
}

impl fmt::Display for DroppedFields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.fields())
    }
}

/// Dropped fields of a device whose stored version differs.
fn dropped_by_device((sent, stored): (&Device, &Device)) -> Vec<DroppedFields> {
    let has_same_sharing = sent.allow_multiple_allocations == stored.allow_multiple_allocations
        && policies(sent).eq(policies(stored));
    let binding = |device: &Device| {
        let conditions =
            (device.binding_conditions.clone(), device.binding_failure_conditions.clone());
        (device.binds_to_node, conditions)
    };
    let mappings = |device: &Device| device.node_allocatable_resource_mappings.clone();
    let differences = [
        (DroppedFields::Sharing, !has_same_sharing),
        (DroppedFields::Taints, sent.taints != stored.taints),
        (DroppedFields::Counters, sent.consumes_counters != stored.consumes_counters),
        (DroppedFields::Binding, binding(sent) != binding(stored)),
        (DroppedFields::Lists, lists(sent) != lists(stored)),
        (DroppedFields::NodeResources, mappings(sent) != mappings(stored)),
    ];
    let dropped: Vec<_> = differences
        .into_iter()
        .filter_map(|(fields, is_dropped)| is_dropped.then_some(fields))
        .collect();
    if dropped.is_empty() { vec![DroppedFields::Other] } else { dropped }
}

fn policies(device: &Device) -> impl Iterator<Item = impl PartialEq + '_> {
    let capacity = device.capacity.iter().flatten();
    capacity.map(|(name, DeviceCapacity { request_policy, .. })| (name, request_policy))
}

/// Number of attributes with several values.
fn lists(device: &Device) -> usize {
    let is_list = |attribute: &&DeviceAttribute| {
        let DeviceAttribute { bools, ints, strings, versions, .. } = attribute;
        bools.is_some() || ints.is_some() || strings.is_some() || versions.is_some()
    };
    device.attributes.iter().flat_map(|attributes| attributes.values()).filter(is_list).count()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn content(device: Value) -> SliceContent {
        let device = serde_json::from_value(device).expect("a device");
        SliceContent { devices: vec![device], ..SliceContent::default() }
    }

    #[test]
    fn a_dropped_field_is_reported_with_its_feature_gate() {
        let full = json!({
            "name": "gpu-0",
            "attributes": {"a": {"int": 1}, "b": {"ints": [1]}},
            "allowMultipleAllocations": true,
            "capacity": {"shares": {"value": "4", "requestPolicy": {"default": "1"}}},
            "taints": [{"key": "k", "effect": "NoSchedule"}],
            "consumesCounters": [{"counterSet": "c", "counters": {"x": {"value": "1"}}}],
        });
        for (path, expected) in [
            ("/allowMultipleAllocations", "DRAConsumableCapacity"),
            ("/capacity/shares/requestPolicy", "DRAConsumableCapacity"),
            ("/taints", "DRADeviceTaints"),
            ("/consumesCounters", "DRAPartitionableDevices"),
            ("/attributes/b", "DRAListTypeAttributes"),
        ] {
            let (mut stored, (parent, key)) =
                (full.clone(), path.rsplit_once('/').expect("a slash"));
            let parent = stored.pointer_mut(parent).and_then(Value::as_object_mut);
            parent.expect("an object").remove(key);
            let dropped = DroppedFields::between(&content(full.clone()), &content(stored));
            let gates: Vec<_> = dropped.into_iter().map(DroppedFields::gate).collect();
            assert_eq!(gates, [Some(expected)], "{path}");
        }
        let renamed = content(json!({"name": "gpu-1"}));
        assert_eq!(
            DroppedFields::between(&content(full), &renamed),
            BTreeSet::from([DroppedFields::Other])
        );
    }
}
