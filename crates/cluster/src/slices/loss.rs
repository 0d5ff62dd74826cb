//! What an API server does not keep of a slice: fields whose feature gate is off are dropped in silence.

use std::{collections::BTreeSet, fmt};

use k8s_openapi::api::resource::v1::{Device, DeviceAttribute, DeviceCapacity};

use super::Content;

/// What is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Loss {
    /// That several claims share a device.
    Sharing,
    /// Why a device is not to be given away.
    Taints,
    /// What the parts of a device take from each other.
    Counters,
    /// What has to be so before a pod is bound.
    Binding,
    /// Attributes with several values.
    Lists,
    /// What a device takes of the node's own resources.
    NodeResources,
    /// Something else.
    Other,
}

// === impl Loss ===

impl Loss {
    /// The fields of a slice that are dropped.
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

    /// The feature gate of the API server that keeps them.
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

    /// What was lost on the way.
    pub(super) fn between(sent: &Content, stored: &Content) -> BTreeSet<Self> {
        let (sent, stored) = (sent.plain(), stored.plain());
        let mut lost = BTreeSet::new();
        if sent.shared_counters != stored.shared_counters {
            lost.insert(Self::Counters);
        }
        let is_other = |(sent, stored): (&Device, &Device)| sent.name != stored.name;
        let devices = || sent.devices.iter().zip(&stored.devices);
        if sent.devices.len() != stored.devices.len() || devices().any(is_other) {
            lost.insert(Self::Other);
            return lost;
        }
        lost.extend(devices().filter(|(sent, stored)| sent != stored).flat_map(of_device));
        lost
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.fields())
    }
}

/// What was lost of a device that came back another one.
fn of_device((sent, stored): (&Device, &Device)) -> Vec<Loss> {
    let is_shared_alike = sent.allow_multiple_allocations == stored.allow_multiple_allocations
        && policies(sent).eq(policies(stored));
    let binding = |device: &Device| {
        let conditions =
            (device.binding_conditions.clone(), device.binding_failure_conditions.clone());
        (device.binds_to_node, conditions)
    };
    let mapped = |device: &Device| device.node_allocatable_resource_mappings.clone();
    let found = [
        (Loss::Sharing, !is_shared_alike),
        (Loss::Taints, sent.taints != stored.taints),
        (Loss::Counters, sent.consumes_counters != stored.consumes_counters),
        (Loss::Binding, binding(sent) != binding(stored)),
        (Loss::Lists, lists(sent) != lists(stored)),
        (Loss::NodeResources, mapped(sent) != mapped(stored)),
    ];
    let lost: Vec<_> = found.into_iter().filter_map(|(loss, is)| is.then_some(loss)).collect();
    if lost.is_empty() { vec![Loss::Other] } else { lost }
}

fn policies(device: &Device) -> impl Iterator<Item = impl PartialEq + '_> {
    let capacity = device.capacity.iter().flatten();
    capacity.map(|(name, DeviceCapacity { request_policy, .. })| (name, request_policy))
}

/// How many attributes have several values.
fn lists(device: &Device) -> usize {
    let is_list = |attribute: &&DeviceAttribute| {
        let DeviceAttribute { bools, ints, strings, versions, .. } = attribute;
        bools.is_some() || ints.is_some() || strings.is_some() || versions.is_some()
    };
    device.attributes.iter().flat_map(|all| all.values()).filter(is_list).count()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn content(device: Value) -> Content {
        let device = serde_json::from_value(device).expect("a device");
        Content { devices: vec![device], ..Content::default() }
    }

    #[test]
    fn what_is_lost_is_told_by_its_feature_gate() {
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
            let (mut stored, (parent, key)) = (full.clone(), path.rsplit_once('/').expect("one"));
            let parent = stored.pointer_mut(parent).and_then(Value::as_object_mut);
            parent.expect("an object").remove(key);
            let lost = Loss::between(&content(full.clone()), &content(stored));
            let gates: Vec<_> = lost.into_iter().map(Loss::gate).collect();
            assert_eq!(gates, [Some(expected)], "{path}");
        }
        let renamed = content(json!({"name": "gpu-1"}));
        assert_eq!(Loss::between(&content(full), &renamed), BTreeSet::from([Loss::Other]));
    }
}
