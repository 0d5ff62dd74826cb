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
    let is_shared = device.allow_multiple_allocations == Some(true);
    let mut causes = Vec::new();
    for (name, capacity) in device.capacity.iter().flatten() {
        causes.extend(name::qualified(&format!("{field}.capacity"), name));
        let field = format!("{field}.capacity[{name}].requestPolicy");
        match &capacity.request_policy {
            None => {}
            Some(_) if !is_shared => {
                causes.push(Cause::forbidden(field, "allowMultipleAllocations must be true"));
            }
            Some(policy) => causes.extend(policy_causes(&field, policy, &capacity.value)),
        }
    }
    causes
}

fn policy_causes(field: &str, policy: &CapacityRequestPolicy, max_value: &Quantity) -> Vec<Cause> {
    let values = policy.valid_values.as_deref().unwrap_or_default();
    let default = policy.default.as_ref();
    match (values, &policy.valid_range) {
        ([], None) => Vec::new(),
        ([], Some(range)) => {
            let detail = "required when validRange is defined";
            default.map_or_else(
                || vec![Cause::required(format!("{field}.default"), detail)],
                |default| range_causes(&format!("{field}.validRange"), range, (default, max_value)),
            )
        }
        (_, Some(_)) => {
            let detail = "exactly one policy can be specified, cannot specify \"validValues\" and \
                          \"validRange\" at the same time";
            vec![Cause::forbidden(field, detail)]
        }
        (values, None) => {
            let detail = "required when validValues is defined";
            default.map_or_else(
                || vec![Cause::required(format!("{field}.default"), detail)],
                |default| {
                    value_causes(&format!("{field}.validValues"), values, (default, max_value))
                },
            )
        }
    }
}

fn value_causes(
    field: &str,
    values: &[Quantity],
    (default, max_value): (&Quantity, &Quantity),
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
        if amount(value) > amount(max_value) {
            let detail = format!("option is larger than capacity value: {}", max_value.0);
            causes.push(Cause::invalid(&*field, &*value.0, detail));
        }
        if values[..index].iter().any(|earlier| amount(earlier) == amount(value)) {
            causes.push(Cause::duplicate(field, &*value.0));
        }
    }
    if !values.iter().any(|value| amount(value) == amount(default)) {
        let detail = "default value is not valid according to the requestPolicy";
        causes.push(Cause::invalid(field, &*default.0, detail));
    }
    causes
}

fn range_causes(
    field: &str,
    range: &CapacityRequestPolicyRange,
    (default, max_value): (&Quantity, &Quantity),
) -> Vec<Cause> {
    let mut causes = Vec::new();
    let mut check =
        |key: &str, (lower, upper): (&Quantity, &Quantity), report: (&Quantity, &str)| {
            if amount(lower) > amount(upper) {
                let (value, detail) = report;
                let limit = if value == lower { upper } else { lower };
                let detail = format!("{detail}: {}", limit.0);
                causes.push(Cause::invalid(format!("{field}.{key}"), &*value.0, detail));
            }
        };
    let min = &range.min;
    check("min", (min, max_value), (min, "min is larger than capacity value"));
    check("min", (min, default), (default, "default is less than min"));
    if let Some(max) = &range.max {
        check("max", (min, max), (min, "min is larger than max"));
        check("max", (max, max_value), (max, "max is larger than capacity value"));
        check("max", (default, max), (default, "default is more than max"));
    }
    causes.extend(
        range.step.iter().flat_map(|step| step_causes(field, range, (step, default, max_value))),
    );
    causes
}

fn step_causes(
    field: &str,
    range: &CapacityRequestPolicyRange,
    (step, default, max_value): (&Quantity, &Quantity, &Quantity),
) -> Vec<Cause> {
    let field = format!("{field}.step");
    let first_step = amount(&range.min).saturating_add(amount(step));
    let mut causes = Vec::new();
    if first_step > amount(max_value) {
        let detail = format!(
            "one step {} is larger than capacity value: {}",
            first_step.ceil(),
            max_value.0
        );
        causes.push(Cause::invalid(&*field, &*step.0, detail));
    }
    let (min, step_width) = (amount(&range.min).ceil(), amount(step).ceil().max(1));
    for value in [Some(default), range.max.as_ref()].into_iter().flatten() {
        if (amount(value).ceil() - min) % step_width != 0 {
            let (step, min) = (&step.0, &range.min.0);
            let detail = format!("value is not a multiple of a given step ({step}) from ({min})");
            causes.push(Cause::invalid(&*field, &*value.0, detail));
        }
    }
    causes
}

/// Parses a quantity; zero if it is invalid. The real server refuses an invalid quantity when it decodes the object.
fn amount(quantity: &Quantity) -> Amount {
    Amount::parse(&quantity.0).unwrap_or(Amount::ZERO)
}
