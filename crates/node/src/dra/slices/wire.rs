//! A device of the catalog as Kubernetes writes it.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::resource::v1::{
        CapacityRequestPolicy, CapacityRequestPolicyRange, Device, DeviceAttribute, DeviceCapacity,
        DeviceTaint,
    },
    apimachinery::pkg::api::resource::Quantity as Amount,
};
use windlass_core::attribute::{AttributeName, AttributeValue, Quantity};

use super::Manner;
use crate::{
    config::{DraTaints, Sharing},
    dra::catalog::{Entry, Taint, shares_of},
};

/// A device in a slice.
pub(super) fn device(entry: &Entry, manner: Manner<'_>) -> Device {
    let attributes = entry.attributes.iter().map(|(name, it)| (name.to_string(), attribute(it)));
    let shares = shares_of(manner.driver);
    let is_shared = entry.sharing != Sharing::Exclusive;
    let capacity = |(name, amount): (&AttributeName, &Quantity)| {
        let request_policy = (is_shared && *name == shares).then(|| one_by_one(*amount));
        let value = Amount(amount.to_string());
        (name.to_string(), DeviceCapacity { request_policy, value })
    };
    let taints: Vec<_> = entry.taints.iter().map(|it| taint(it, manner)).collect();
    Device {
        name: entry.name.to_string(),
        allow_multiple_allocations: is_shared.then_some(true),
        attributes: some(attributes.collect()),
        capacity: some(entry.capacity.iter().map(capacity).collect()),
        taints: (!taints.is_empty()).then_some(taints),
        ..Device::default()
    }
}

fn some<V>(map: BTreeMap<String, V>) -> Option<BTreeMap<String, V>> {
    Some(map).filter(|map| !map.is_empty())
}

fn attribute(value: &AttributeValue) -> DeviceAttribute {
    let mut attribute = DeviceAttribute::default();
    match value {
        AttributeValue::String(text) => attribute.string = Some(text.clone()),
        AttributeValue::Int(number) => attribute.int = Some(*number),
        AttributeValue::Bool(truth) => attribute.bool = Some(*truth),
        AttributeValue::Version(text) => attribute.version = Some(text.clone()),
    }
    attribute
}

/// A claim that says nothing gets one share. The API server refuses a step that leads beyond the whole.
fn one_by_one(whole: Quantity) -> CapacityRequestPolicy {
    let one = || Amount("1".to_owned());
    let (Quantity::Count(shares) | Quantity::Bytes(shares)) = whole;
    let range = CapacityRequestPolicyRange { min: one(), max: None, step: (shares > 1).then(one) };
    CapacityRequestPolicy { default: Some(one()), valid_range: Some(range), valid_values: None }
}

fn taint(taint: &Taint, Manner { driver, taints }: Manner<'_>) -> DeviceTaint {
    let effect = match taints {
        DraTaints::NoSchedule => "NoSchedule",
        DraTaints::None => "None",
    };
    DeviceTaint {
        key: format!("{driver}/{}", taint.key),
        value: Some(taint.value.clone()).filter(|value| !value.is_empty()),
        effect: effect.to_owned(),
        time_added: None,
    }
}
