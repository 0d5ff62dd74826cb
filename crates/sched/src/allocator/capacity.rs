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

use super::taken::Consumed;

/// True if a device has the requested capacity free, given the consumption of others.
pub(super) fn fits(
    device: &Device,
    wanted: Option<&CapacityRequirements>,
    others: [Option<&Consumed>; 2],
) -> bool {
    let requested = wanted.and_then(|wanted| wanted.requests.as_ref());
    let known = device.capacity.as_ref();
    let is_known = |name: &String| known.is_some_and(|known| known.contains_key(name));
    if requested.is_some_and(|requested| !requested.keys().all(is_known)) {
        return false;
    }
    known.into_iter().flatten().all(|(name, capacity)| {
        let takes = consumption(requested.and_then(|requested| requested.get(name)), capacity);
        let gone = others.iter().flatten().filter_map(|consumed| consumed.get(name));
        let sum = gone.fold(amount(&takes), |sum, gone| sum.saturating_add(*gone));
        !violates(&takes, capacity.request_policy.as_ref()) && sum <= amount(&capacity.value)
    })
}

/// Amount that a request consumes of each capacity of a device.
pub(super) fn consumed(
    device: &Device,
    wanted: Option<&CapacityRequirements>,
) -> BTreeMap<String, Quantity> {
    let requested = wanted.and_then(|wanted| wanted.requests.as_ref());
    let of = |(name, capacity): (&String, &DeviceCapacity)| {
        (name.clone(), consumption(requested.and_then(|requested| requested.get(name)), capacity))
    };
    device.capacity.iter().flatten().map(of).collect()
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
        Some(CapacityRequestPolicy { valid_range: Some(range), .. }) => in_range(requested, range),
        Some(CapacityRequestPolicy { valid_values: Some(values), .. }) => {
            let enough = values.iter().find(|value| amount(requested) <= amount(value));
            enough.unwrap_or(requested).clone()
        }
        _ => requested.clone(),
    }
}

/// Rounds up to the minimum, or to the next step above it.
fn in_range(requested: &Quantity, range: &CapacityRequestPolicyRange) -> Quantity {
    if amount(requested) < amount(&range.min) {
        return range.min.clone();
    }
    let Some(step) = &range.step else { return requested.clone() };
    let (min, step) = (amount(&range.min).rounded_up(), amount(step).rounded_up().max(1));
    let beyond = amount(requested).rounded_up() - min;
    let steps = beyond / step + i64::from(beyond % step != 0);
    let whole = u64::try_from(min + steps * step).unwrap_or_default();
    Quantity(attribute::Quantity::Bytes(whole).to_string())
}

fn violates(takes: &Quantity, policy: Option<&CapacityRequestPolicy>) -> bool {
    let Some(policy) = policy else { return false };
    if policy.default.as_ref() == Some(takes) {
        return false;
    }
    if let Some(range) = &policy.valid_range {
        let (min, value) = (amount(&range.min).rounded_up(), amount(takes).rounded_up());
        let step = range.step.as_ref().map(|step| amount(step).rounded_up().max(1));
        return range.max.as_ref().is_some_and(|max| amount(takes) > amount(max))
            || step.is_some_and(|step| (value - min) % step != 0);
    }
    let values = policy.valid_values.as_deref().unwrap_or_default();
    !values.is_empty() && !values.iter().any(|value| amount(value) == amount(takes))
}

/// Parses a quantity. An invalid one, which the API server would reject, is zero.
pub(super) fn amount(quantity: &Quantity) -> Amount {
    Amount::parse(&quantity.0).unwrap_or(Amount::ZERO)
}
