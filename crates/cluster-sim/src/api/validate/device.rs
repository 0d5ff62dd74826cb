//! Validation of a slice's devices.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::resource::v1::{Device, DeviceAttribute, DeviceTaint};

use super::{
    capacity,
    name::{self, too_long, too_many},
    slice,
};
use crate::api::refusal::{Cause, Problem};

const MAX_ATTRIBUTES_AND_CAPACITIES: usize = 32;
const MAX_VALUES: usize = 48;
const MAX_VALUE_BYTES: usize = 64;
const MAX_TAINTS: usize = 16;
const MAX_CONSUMPTIONS: usize = 2;
const MAX_CONDITIONS: usize = 4;

const EFFECTS: &[&str] = &["NoExecute", "NoSchedule", "None"];
const NODE_SELECTION_REQUIRED: &str = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when \
     `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
const NODE_SELECTION_FORBIDDEN: &str = "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set \
     to true in the ResourceSlice spec";

/// Problems of a device, except those of its node selection.
pub(super) fn causes(field: &str, device: &Device) -> Vec<Cause> {
    let mut causes = name::label(&format!("{field}.name"), &device.name);
    causes.extend(attributes(field, device));
    causes.extend(capacity::causes(field, device));
    causes.extend(taints(&format!("{field}.taints"), device.taints.as_deref().unwrap_or_default()));
    causes.extend(consumptions(&format!("{field}.consumesCounters"), device));
    causes.extend(conditions(field, device));
    causes
}

/// Problem of a device's node selection. `by_device` is true if the slice has `perDeviceNodeSelection`.
pub(super) fn node_selection(field: &str, device: &Device, by_device: bool) -> Option<Cause> {
    let fields_set =
        [device.node_name.is_some(), device.node_selector.is_some(), device.all_nodes.is_some()];
    match (by_device, fields_set.into_iter().filter(|is_set| *is_set).count()) {
        (true, 1) | (false, 0) => None,
        (true, 0) => Some(Cause::required(field, NODE_SELECTION_REQUIRED)),
        (true, _) => Some(Cause::invalid(field, "", NODE_SELECTION_REQUIRED)),
        (false, _) => {
            Some(Cause::invalid(field, serde_json::Value::Null, NODE_SELECTION_FORBIDDEN))
        }
    }
}

fn attributes(field: &str, device: &Device) -> Vec<Cause> {
    let attributes = device.attributes.iter().flatten();
    let entries = attributes.clone().count() + device.capacity.as_ref().map_or(0, BTreeMap::len);
    let values: usize = attributes.clone().map(|(_, value)| count(value).max(1)).sum();
    let limit = |count: usize, max: usize, items: &str| {
        let detail = format!("the total number of {items} must not exceed {max}");
        (count > max).then(|| Cause::invalid(field, count, detail))
    };
    let mut causes: Vec<_> =
        limit(entries, MAX_ATTRIBUTES_AND_CAPACITIES, "attributes and capacities")
            .into_iter()
            .chain(limit(values, MAX_VALUES, "attribute values"))
            .collect();
    for (name, value) in attributes {
        causes.extend(name::qualified(&format!("{field}.attributes"), name));
        causes.extend(attribute(&format!("{field}.attributes[{name}]"), value));
    }
    causes
}

/// Number of values in the lists of an attribute.
fn count(value: &DeviceAttribute) -> usize {
    value.bools.as_ref().map_or(0, Vec::len)
        + value.ints.as_ref().map_or(0, Vec::len)
        + value.strings.as_ref().map_or(0, Vec::len)
        + value.versions.as_ref().map_or(0, Vec::len)
}

fn attribute(field: &str, value: &DeviceAttribute) -> Vec<Cause> {
    let values_set = [
        value.bool.is_some(),
        value.int.is_some(),
        value.string.is_some(),
        value.version.is_some(),
        value.bools.is_some(),
        value.ints.is_some(),
        value.strings.is_some(),
        value.versions.is_some(),
    ];
    let mut causes = Vec::new();
    if values_set.into_iter().filter(|is_set| *is_set).count() != 1 {
        causes.push(Cause::invalid(field, "", "exactly one value must be specified"));
    }
    let strings = value.string.iter().chain(value.strings.iter().flatten());
    let versions = value.version.iter().chain(value.versions.iter().flatten());
    for version in versions.clone().filter(|version| !is_version(version)) {
        let detail = "must be a string compatible with semver.org spec 2.0.0";
        causes.push(Cause::invalid(format!("{field}.version"), &**version, detail));
    }
    for (kind, text) in strings.map(|s| ("string", s)).chain(versions.map(|v| ("version", v))) {
        causes.extend(
            (text.len() > MAX_VALUE_BYTES)
                .then(|| too_long(&format!("{field}.{kind}"), MAX_VALUE_BYTES)),
        );
    }
    causes
}

/// True for a semantic version: three numbers without leading zeros, optional identifiers after `-` and `+`.
fn is_version(text: &str) -> bool {
    let (text, build) = text.split_once('+').map_or((text, None), |(t, b)| (t, Some(b)));
    let (numbers, prerelease) = text.split_once('-').map_or((text, None), |(t, b)| (t, Some(b)));
    let is_number = |identifier: &str| {
        !identifier.is_empty()
            && identifier.bytes().all(|b| b.is_ascii_digit())
            && (identifier == "0" || !identifier.starts_with('0'))
    };
    let is_identifier = |identifier: &str| {
        !identifier.is_empty() && identifier.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    let is_prerelease_identifier = |identifier: &str| {
        is_identifier(identifier)
            && (is_number(identifier) || identifier.bytes().any(|b| !b.is_ascii_digit()))
    };
    numbers.split('.').count() == 3
        && numbers.split('.').all(is_number)
        && prerelease.is_none_or(|prerelease| prerelease.split('.').all(is_prerelease_identifier))
        && build.is_none_or(|build| build.split('.').all(is_identifier))
}

fn taints(field: &str, taints: &[DeviceTaint]) -> Vec<Cause> {
    let mut causes: Vec<_> = too_many(field, taints.len(), MAX_TAINTS).into_iter().collect();
    for (index, taint) in taints.iter().enumerate() {
        causes.extend(name::label_key(&format!("{field}[{index}].key"), &taint.key));
        let effect_field = format!("{field}[{index}].effect");
        match taint.effect.as_str() {
            "" => causes.push(Cause::required(effect_field, "")),
            effect if EFFECTS.contains(&effect) => {}
            effect => {
                let problem = Problem::Unsupported(effect.to_owned(), EFFECTS);
                causes.push(Cause { field: effect_field, problem });
            }
        }
    }
    causes
}

fn consumptions(field: &str, device: &Device) -> Vec<Cause> {
    let consumptions = device.consumes_counters.as_deref().unwrap_or_default();
    let too_many_consumptions = too_many(field, consumptions.len(), MAX_CONSUMPTIONS);
    let mut causes: Vec<_> = too_many_consumptions.into_iter().collect();
    for (index, consumption) in consumptions.iter().enumerate() {
        let field = format!("{field}[{index}]");
        let set = &consumption.counter_set;
        causes.extend(name::label(&format!("{field}.counterSet"), set));
        causes.extend(slice::counters(&format!("{field}.counters"), consumption.counters.keys()));
        if consumptions[..index].iter().any(|earlier| earlier.counter_set == *set) {
            causes.push(Cause::duplicate(field, &**set));
        }
    }
    causes
}

fn conditions(field: &str, device: &Device) -> Vec<Cause> {
    let binding = device.binding_conditions.as_deref().unwrap_or_default();
    let failure = device.binding_failure_conditions.as_deref().unwrap_or_default();
    let mut causes = Vec::new();
    for (key, conditions) in [("bindingConditions", binding), ("bindingFailureConditions", failure)]
    {
        let field = format!("{field}.{key}");
        causes.extend(too_many(&field, conditions.len(), MAX_CONDITIONS));
        let mut seen = BTreeSet::new();
        for (index, condition) in conditions.iter().enumerate() {
            let field = format!("{field}[{index}]");
            causes.extend(name::label_key(&field, condition));
            if !seen.insert(condition) {
                causes.push(Cause::duplicate(field, &**condition));
            }
        }
    }
    for (index, condition) in failure.iter().enumerate().filter(|(_, c)| binding.contains(c)) {
        let field = format!("{field}.bindingFailureConditions[{index}]");
        let detail = "bindingFailureConditions must not overlap with bindingConditions";
        causes.push(Cause::invalid(field, &**condition, detail));
    }
    if binding.is_empty() != failure.is_empty() {
        let (key, dependent) = if binding.is_empty() {
            ("bindingConditions", "bindingFailureConditions")
        } else {
            ("bindingFailureConditions", "bindingConditions")
        };
        let detail = format!("{key} are required to use {dependent}");
        causes.push(Cause::invalid(format!("{field}.{key}"), serde_json::Value::Null, detail));
    }
    causes
}
