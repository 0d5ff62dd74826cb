//! Validation of slices: pool, node selection, and maximum numbers of entries.

use k8s_openapi::api::resource::v1::{CounterSet, Device, ResourceSlice, ResourceSliceSpec};
use serde_json::Value;

use super::{
    device,
    name::{self, too_many},
};
use crate::api::refusal::Cause;

/// Maximum number of devices in a slice.
const MAX_DEVICES: usize = 128;
/// Maximum number of devices if one of them has taints, counters or lists.
const MAX_ADVANCED_DEVICES: usize = 64;
const MAX_COUNTER_SETS: usize = 8;
const MAX_COUNTERS: usize = 32;

const NODE_SELECTION_REQUIRED: &str =
    "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";

pub(super) fn causes(new: &ResourceSlice, old: Option<&ResourceSlice>) -> Vec<Cause> {
    let spec = &new.spec;
    let object_name = new.metadata.name.as_deref().unwrap_or_default();
    let mut causes = name::subdomain("metadata.name", object_name);
    causes.extend(name::driver("spec.driver", &spec.driver));
    causes.extend(pool(spec));
    causes.extend(old.into_iter().flat_map(|old| immutable(spec, &old.spec)));
    causes.extend(node_selection(spec));
    if spec.shared_counters.is_some() && spec.devices.is_some() {
        let detail = "only one of `sharedCounters` or `devices` is allowed";
        causes.push(Cause::invalid("spec", "", detail));
    }
    causes.extend(devices(spec));
    causes.extend(counter_sets(spec.shared_counters.as_deref().unwrap_or_default()));
    causes
}

fn pool(spec: &ResourceSliceSpec) -> Vec<Cause> {
    let pool = &spec.pool;
    let mut causes = name::pool("spec.pool.name", &pool.name);
    if pool.resource_slice_count <= 0 {
        let (field, count) = ("spec.pool.resourceSliceCount", pool.resource_slice_count);
        causes.push(Cause::invalid(field, count, "must be greater than zero"));
    }
    if pool.generation < 0 {
        let (field, detail) = ("spec.pool.generation", "must be greater than or equal to zero");
        causes.push(Cause::invalid(field, pool.generation, detail));
    }
    causes
}

fn immutable(new: &ResourceSliceSpec, old: &ResourceSliceSpec) -> Vec<Cause> {
    let node = |spec: &ResourceSliceSpec| spec.node_name.clone().map_or(Value::Null, Value::from);
    [
        ("spec.pool.name", Value::from(&*new.pool.name), Value::from(&*old.pool.name)),
        ("spec.driver", Value::from(&*new.driver), Value::from(&*old.driver)),
        ("spec.nodeName", node(new), node(old)),
    ]
    .into_iter()
    .filter(|(_, new, old)| new != old)
    .map(|(field, new, _)| Cause::immutable(field, &new))
    .collect()
}

/// Problems of the node selection.
fn node_selection(spec: &ResourceSliceSpec) -> Vec<Cause> {
    let mut causes = Vec::new();
    if spec.node_name.as_deref() == Some("") {
        let detail = "must be either unset or set to a non-empty string";
        causes.push(Cause::invalid("spec.nodeName", "", detail));
    }
    for (field, value) in [
        ("spec.allNodes", spec.all_nodes),
        ("spec.perDeviceNodeSelection", spec.per_device_node_selection),
    ] {
        if value == Some(false) {
            causes.push(Cause::invalid(field, false, "must be either unset or set to true"));
        }
    }
    if let Some(selector) = spec.node_selector.as_ref().filter(|s| s.node_selector_terms.len() != 1)
    {
        let terms = serde_json::to_value(&selector.node_selector_terms).unwrap_or_default();
        let field = "spec.nodeSelector.nodeSelectorTerms";
        causes.push(Cause::invalid(field, terms, "must have exactly one node selector term"));
    }
    let selections = [
        ("`nodeName`", spec.node_name.as_ref().is_some_and(|name| !name.is_empty())),
        ("`nodeSelector`", spec.node_selector.is_some()),
        ("`allNodes`", spec.all_nodes == Some(true)),
        ("`perDeviceNodeSelection`", spec.per_device_node_selection == Some(true)),
    ];
    let selections: Vec<_> =
        selections.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| name).collect();
    match selections.as_slice() {
        [] => causes.push(Cause::required("spec", NODE_SELECTION_REQUIRED)),
        [_] => {}
        selections => {
            let detail = format!("{NODE_SELECTION_REQUIRED}, but multiple fields are set");
            causes.push(Cause::invalid("spec", format!("{{{}}}", selections.join(", ")), detail));
        }
    }
    causes
}

fn devices(spec: &ResourceSliceSpec) -> Vec<Cause> {
    let devices = spec.devices.as_deref().unwrap_or_default();
    let is_advanced = devices.iter().any(is_advanced);
    let max = if is_advanced { MAX_ADVANCED_DEVICES } else { MAX_DEVICES };
    let mut causes: Vec<_> = too_many("spec.devices", devices.len(), max).into_iter().collect();
    let by_device = spec.per_device_node_selection == Some(true);
    for (index, device) in devices.iter().enumerate() {
        let field = format!("spec.devices[{index}]");
        causes.extend(device::causes(&field, device));
        causes.extend(device::node_selection(&field, device, by_device));
        if devices[..index].iter().any(|earlier| earlier.name == device.name) {
            causes.push(Cause::duplicate(field, &*device.name));
        }
    }
    causes
}

fn is_advanced(device: &Device) -> bool {
    let has_list = device.attributes.iter().flatten().any(|(_, value)| {
        value.bools.is_some()
            || value.ints.is_some()
            || value.strings.is_some()
            || value.versions.is_some()
    });
    let is_nonzero = |count: Option<usize>| count.is_some_and(|count| count > 0);
    has_list
        || is_nonzero(device.taints.as_ref().map(Vec::len))
        || is_nonzero(device.consumes_counters.as_ref().map(Vec::len))
}

fn counter_sets(sets: &[CounterSet]) -> Vec<Cause> {
    let field = "spec.sharedCounters";
    let mut causes: Vec<_> = too_many(field, sets.len(), MAX_COUNTER_SETS).into_iter().collect();
    for (index, set) in sets.iter().enumerate() {
        let field = format!("{field}[{index}]");
        causes.extend(name::label(&format!("{field}.name"), &set.name));
        causes.extend(counters(&format!("{field}.counters"), set.counters.keys()));
        if sets[..index].iter().any(|earlier| earlier.name == set.name) {
            causes.push(Cause::duplicate(field, &*set.name));
        }
    }
    causes
}

/// Checks the counters of a set, or a device's consumption of one.
pub(super) fn counters<'a>(
    field: &str,
    names: impl ExactSizeIterator<Item = &'a String>,
) -> Vec<Cause> {
    if names.len() == 0 {
        return vec![Cause::required(field, "")];
    }
    let too_many_counters = too_many(field, names.len(), MAX_COUNTERS);
    too_many_counters
        .into_iter()
        .chain(names.flat_map(|counter| name::label(field, counter)))
        .collect()
}
