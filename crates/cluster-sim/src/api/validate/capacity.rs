//! Validation of a device's capacities and their request policies.

use k8s_openapi::{
    api::resource::v1::{CapacityRequestPolicy, CapacityRequestPolicyRange, Device},
    apimachinery::pkg::api::resource::Quantity,
};
use windlass_core::selector::Amount;

use super::name::{self, too_many};
use crate::api::refusal::Cause;

const MAX_VALUES: usize = 10;

pub(super) fn causes(field: &str, device: &Device) -> Vec<Cause> {
    let shared = device.allow_multiple_allocations == Some(true);
    let mut causes = Vec::new();
    for (name, capacity) in device.capacity.iter().flatten() {
        causes.extend(name::qualified(&format!("{field}.capacity"), name));
        let field = format!("{field}.capacity[{name}].requestPolicy");
        match &capacity.request_policy {
            None => {}
            Some(_) if !shared => {
                causes.push(Cause::forbidden(field, "allowMultipleAllocations must be true"));
            }
            Some(policy) => causes.extend(of_policy(&field, policy, &capacity.value)),
        }
    }
    causes
}

fn of_policy(field: &str, policy: &CapacityRequestPolicy, most: &Quantity) -> Vec<Cause> {
    let values = policy.valid_values.as_deref().unwrap_or_default();
    let default = policy.default.as_ref();
    match (values, &policy.valid_range) {
        ([], None) => Vec::new(),
        ([], Some(range)) => {
            let required = "required when validRange is defined";
            default.map_or_else(
                || vec![Cause::required(format!("{field}.default"), required)],
                |default| of_range(&format!("{field}.validRange"), range, (default, most)),
            )
        }
        (_, Some(_)) => {
            let detail = "exactly one policy can be specified, cannot specify \"validValues\" and \
                          \"validRange\" at the same time";
            vec![Cause::forbidden(field, detail)]
        }
        (values, None) => {
            let required = "required when validValues is defined";
            default.map_or_else(
                || vec![Cause::required(format!("{field}.default"), required)],
                |default| of_values(&format!("{field}.validValues"), values, (default, most)),
            )
        }
    }
}

fn of_values(
    field: &str,
    values: &[Quantity],
    (default, most): (&Quantity, &Quantity),
) -> Vec<Cause> {
    let mut causes = Vec::new();
    for (index, pair) in values.windows(2).enumerate() {
        if amount(&pair[0]) > amount(&pair[1]) {
            let field = format!("{field}[{}]", index + 1);
            causes.push(Cause::invalid(
                field,
                &*pair[1].0,
                "values must be sorted in ascending order",
            ));
        }
    }
    causes.extend(too_many(field, values.len(), MAX_VALUES));
    for (index, value) in values.iter().enumerate() {
        let field = format!("{field}[{index}]");
        if amount(value) > amount(most) {
            let detail = format!("option is larger than capacity value: {}", most.0);
            causes.push(Cause::invalid(&*field, &*value.0, detail));
        }
        if values[..index].iter().any(|before| amount(before) == amount(value)) {
            causes.push(Cause::duplicate(field, &*value.0));
        }
    }
    if !values.iter().any(|value| amount(value) == amount(default)) {
        let detail = "default value is not valid according to the requestPolicy";
        causes.push(Cause::invalid(field, &*default.0, detail));
    }
    causes
}

fn of_range(
    field: &str,
    range: &CapacityRequestPolicyRange,
    (default, most): (&Quantity, &Quantity),
) -> Vec<Cause> {
    let mut causes = Vec::new();
    let mut check =
        |key: &str, (small, large): (&Quantity, &Quantity), words: (&Quantity, &str)| {
            if amount(small) > amount(large) {
                let (value, what) = words;
                let other = if value == small { large } else { small };
                let detail = format!("{what}: {}", other.0);
                causes.push(Cause::invalid(format!("{field}.{key}"), &*value.0, detail));
            }
        };
    let min = &range.min;
    check("min", (min, most), (min, "min is larger than capacity value"));
    check("min", (min, default), (default, "default is less than min"));
    if let Some(max) = &range.max {
        check("max", (min, max), (min, "min is larger than max"));
        check("max", (max, most), (max, "max is larger than capacity value"));
        check("max", (default, max), (default, "default is more than max"));
    }
    causes.extend(range.step.iter().flat_map(|step| of_step(field, range, (step, default, most))));
    causes
}

fn of_step(
    field: &str,
    range: &CapacityRequestPolicyRange,
    (step, default, most): (&Quantity, &Quantity, &Quantity),
) -> Vec<Cause> {
    let field = format!("{field}.step");
    let first = amount(&range.min).saturating_add(amount(step));
    let mut causes = Vec::new();
    if first > amount(most) {
        let detail =
            format!("one step {} is larger than capacity value: {}", first.rounded_up(), most.0);
        causes.push(Cause::invalid(&*field, &*step.0, detail));
    }
    let (min, width) = (amount(&range.min).rounded_up(), amount(step).rounded_up().max(1));
    for value in [Some(default), range.max.as_ref()].into_iter().flatten() {
        if (amount(value).rounded_up() - min) % width != 0 {
            let (step, min) = (&step.0, &range.min.0);
            let detail = format!("value is not a multiple of a given step ({step}) from ({min})");
            causes.push(Cause::invalid(&*field, &*value.0, detail));
        }
    }
    causes
}

/// Parses a quantity. The real server refuses an invalid one when it decodes the object; here it is zero.
fn amount(quantity: &Quantity) -> Amount {
    Amount::parse(&quantity.0).unwrap_or(Amount::ZERO)
}
