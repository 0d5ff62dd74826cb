//! Consumable capacity of shared devices: the amount that a request consumes, and its availability.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::resource::v1::{
        CapacityRequestPolicy, CapacityRequestPolicyRange, CapacityRequirements, Device,
        DeviceCapacity,
    },
    apimachinery::pkg::api::resource::Quantity,
};
use windlass_core::{attribute, selector::Amount};

use super::allocated_devices::Consumed;

/// True if the device has the requested capacity free. `others` is the capacity that other claims and choices consume.
pub(super) fn fits(
    device: &Device,
    required: Option<&CapacityRequirements>,
    others: [Option<&Consumed>; 2],
) -> bool {
    let requested = required.and_then(|required| required.requests.as_ref());
    let capacities = device.capacity.as_ref();
    let exists = |name: &String| capacities.is_some_and(|capacities| capacities.contains_key(name));
    if requested.is_some_and(|requested| !requested.keys().all(exists)) {
        return false;
    }
    capacities.into_iter().flatten().all(|(name, capacity)| {
        let own_amount = consumption(requested.and_then(|requested| requested.get(name)), capacity);
        let other_amounts = others.iter().flatten().filter_map(|consumed| consumed.get(name));
        let sum = other_amounts.fold(amount(&own_amount), |sum, other| sum.saturating_add(*other));
        !violates(&own_amount, capacity.request_policy.as_ref()) && sum <= amount(&capacity.value)
    })
}

/// By capacity of the device: the amount that a request consumes.
pub(super) fn consumed(
    device: &Device,
    required: Option<&CapacityRequirements>,
) -> BTreeMap<String, Quantity> {
    let requested = required.and_then(|required| required.requests.as_ref());
    let by_name = |(name, capacity): (&String, &DeviceCapacity)| {
        (name.clone(), consumption(requested.and_then(|requested| requested.get(name)), capacity))
    };
    device.capacity.iter().flatten().map(by_name).collect()
}

/// The amount that a request consumes, by the device's request policy. A request without an amount gets the default, or
/// else the whole capacity.
fn consumption(requested: Option<&Quantity>, capacity: &DeviceCapacity) -> Quantity {
    let policy = capacity.request_policy.as_ref();
    let Some(requested) = requested else {
        let default = policy.and_then(|policy| policy.default.as_ref());
        return default.unwrap_or(&capacity.value).clone();
    };
    match policy {
        Some(CapacityRequestPolicy { valid_range: Some(range), .. }) => {
            round_to_range(requested, range)
        }
        Some(CapacityRequestPolicy { valid_values: Some(values), .. }) => {
            let sufficient = values.iter().find(|value| amount(requested) <= amount(value));
            sufficient.unwrap_or(requested).clone()
        }
        _ => requested.clone(),
    }
}

/// Rounds up to the range's minimum, or to the next step above the minimum.
fn round_to_range(requested: &Quantity, range: &CapacityRequestPolicyRange) -> Quantity {
    if amount(requested) < amount(&range.min) {
        return range.min.clone();
    }
    let Some(step) = &range.step else { return requested.clone() };
    let (min, step) = (amount(&range.min).ceil(), amount(step).ceil().max(1));
    let above_min = amount(requested).ceil() - min;
    let steps = above_min / step + i64::from(above_min % step != 0);
    let rounded = u64::try_from(min + steps * step).unwrap_or_default();
    Quantity(attribute::Quantity::Bytes(rounded).to_string())
}

/// True if the policy forbids consuming this amount.
fn violates(consumed_amount: &Quantity, policy: Option<&CapacityRequestPolicy>) -> bool {
    let Some(policy) = policy else { return false };
    if policy.default.as_ref() == Some(consumed_amount) {
        return false;
    }
    if let Some(range) = &policy.valid_range {
        let (min, value) = (amount(&range.min).ceil(), amount(consumed_amount).ceil());
        let step = range.step.as_ref().map(|step| amount(step).ceil().max(1));
        return range.max.as_ref().is_some_and(|max| amount(consumed_amount) > amount(max))
            || step.is_some_and(|step| (value - min) % step != 0);
    }
    let values = policy.valid_values.as_deref().unwrap_or_default();
    !values.is_empty() && !values.iter().any(|value| amount(value) == amount(consumed_amount))
}

/// Parses a quantity. An invalid quantity counts as zero; the API server rejects these.
pub(super) fn amount(quantity: &Quantity) -> Amount {
    Amount::parse(&quantity.0).unwrap_or(Amount::ZERO)
}
