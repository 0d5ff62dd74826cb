//! Conversion of catalog entries to Kubernetes' types.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::resource::v1::{
        CapacityRequestPolicy, CapacityRequestPolicyRange, Counter, CounterSet, Device,
        DeviceAttribute, DeviceCapacity, DeviceCounterConsumption, DeviceTaint,
    },
    apimachinery::pkg::api::resource::Quantity as Amount,
};
use windlass_config::{DraTaints, DriverName};
use windlass_core::attribute::{AttributeName, AttributeValue, Quantity};

use super::SliceOptions;
use crate::{
    catalog::{CatalogEntry, Counters, Taint, shares_capacity_name},
    consumable_capacity::{ConsumableCapacity, compute_capacity_name},
};

pub(super) fn device(entry: &CatalogEntry, options: SliceOptions<'_>) -> Device {
    let attributes =
        entry.attributes.iter().map(|(name, value)| (name.to_string(), attribute(value)));
    let shares = shares_capacity_name(options.driver);
    let replicas = entry.sharing.replicas().map(|replicas| u64::from(replicas.get()));
    let capacity = |(name, amount): (&AttributeName, &Quantity)| {
        let request_policy = match (&entry.consumable, replicas) {
            (Some(consumable), _) => Some(share_amount_policy(name, consumable, options.driver)),
            (None, Some(_)) if *name == shares => Some(share_count_policy(*amount)),
            (None, Some(replicas)) => Some(equal_part_policy(*amount, replicas)),
            (None, None) => None,
        };
        let value = Amount(amount.to_string());
        (name.to_string(), DeviceCapacity { request_policy, value })
    };
    let is_shared = replicas.is_some() || entry.consumable.is_some();
    let taints: Vec<_> = entry.taints.iter().map(|entry| taint(entry, options)).collect();
    Device {
        name: entry.name.to_string(),
        allow_multiple_allocations: is_shared.then_some(true),
        attributes: non_empty(attributes.collect()),
        capacity: non_empty(entry.capacity.iter().map(capacity).collect()),
        taints: (!taints.is_empty()).then_some(taints),
        consumes_counters: entry.consumes.as_ref().map(|consumed| vec![consumption(consumed)]),
        ..Device::default()
    }
}

pub(super) fn counter_set(counters: &Counters) -> CounterSet {
    CounterSet { name: counters.set.clone(), counters: amounts(counters) }
}

fn consumption(consumed: &Counters) -> DeviceCounterConsumption {
    DeviceCounterConsumption { counter_set: consumed.set.clone(), counters: amounts(consumed) }
}

fn amounts(counters: &Counters) -> BTreeMap<String, Counter> {
    let counter = |amount: &Quantity| Counter { value: Amount(amount.to_string()) };
    counters.amounts.iter().map(|(name, amount)| (name.clone(), counter(amount))).collect()
}

fn non_empty<V>(map: BTreeMap<String, V>) -> Option<BTreeMap<String, V>> {
    Some(map).filter(|map| !map.is_empty())
}

fn attribute(value: &AttributeValue) -> DeviceAttribute {
    let mut attribute = DeviceAttribute::default();
    match value {
        AttributeValue::String(text) => attribute.string = Some(text.clone()),
        AttributeValue::Int(number) => attribute.int = Some(*number),
        AttributeValue::Bool(boolean) => attribute.bool = Some(*boolean),
        AttributeValue::Version(text) => attribute.version = Some(text.clone()),
    }
    attribute
}

/// Request policy of the capacity of shares. The default is one share.
fn share_count_policy(shares: Quantity) -> CapacityRequestPolicy {
    let one = Quantity::Count(1);
    policy_in_steps(&one, &one, shares > one)
}

/// Request policy of another capacity of a shared device. The default is an equal part: without a policy, the first
/// claim takes all. Memory has steps of one mebibyte.
fn equal_part_policy(total: Quantity, replicas: u64) -> CapacityRequestPolicy {
    const MIB: u64 = 1 << 20;
    match total {
        Quantity::Bytes(bytes) if bytes / replicas >= MIB => {
            let part = Quantity::Bytes(bytes / replicas / MIB * MIB);
            policy_in_steps(&part, &Quantity::Bytes(MIB), bytes >= 2 * MIB)
        }
        Quantity::Bytes(bytes) => policy_with_default(&Quantity::Bytes(bytes / replicas)),
        Quantity::Count(count) => policy_with_default(&Quantity::Count(count / replicas)),
    }
}

/// Request policy of shares by amounts. The default is all memory, which makes a claim exclusive, and no compute. Other
/// capacities are not enforced: their default is zero.
fn share_amount_policy(
    name: &AttributeName,
    consumable: &ConsumableCapacity,
    driver: &DriverName,
) -> CapacityRequestPolicy {
    let bytes = |mebibytes: u64| Quantity::Bytes(mebibytes << 20);
    if *name == consumable.memory_name {
        let (total, minimum) = (bytes(consumable.memory_mib), bytes(consumable.min_memory_mib));
        let step = (consumable.min_memory_mib < consumable.memory_mib)
            .then(|| Amount(bytes(1).to_string()));
        let min = Amount(minimum.to_string());
        let range = CapacityRequestPolicyRange { min, max: None, step };
        return CapacityRequestPolicy { valid_range: Some(range), ..policy_with_default(&total) };
    }
    let zero = Quantity::Count(0);
    if *name == compute_capacity_name(driver) {
        let (min, step) = (Amount(zero.to_string()), Some(Amount("1".to_owned())));
        let range = CapacityRequestPolicyRange { min, max: None, step };
        return CapacityRequestPolicy { valid_range: Some(range), ..policy_with_default(&zero) };
    }
    policy_with_default(&zero)
}

fn policy_with_default(default: &Quantity) -> CapacityRequestPolicy {
    let default = Some(Amount(default.to_string()));
    CapacityRequestPolicy { default, valid_range: None, valid_values: None }
}

/// Request policy with a minimum of one step. `has_room` adds the step: the API server refuses one that exceeds the
/// capacity.
fn policy_in_steps(default: &Quantity, step: &Quantity, has_room: bool) -> CapacityRequestPolicy {
    let step = || Amount(step.to_string());
    let range = CapacityRequestPolicyRange { min: step(), max: None, step: has_room.then(step) };
    CapacityRequestPolicy { valid_range: Some(range), ..policy_with_default(default) }
}

fn taint(taint: &Taint, SliceOptions { driver, taints }: SliceOptions<'_>) -> DeviceTaint {
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
