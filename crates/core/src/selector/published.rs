//! A device as a `ResourceSlice` publishes it, and the expressions that claims and classes have about it.

use std::{collections::BTreeMap, str::FromStr};

use cel::common::{
    types::{CelBool, CelString},
    value::Val,
};

use super::{
    DeviceExpression, InvalidExpression, NoAnswer,
    facts::{self, Domains},
    quantity::Amount,
};
use crate::attribute::{AttributeName, AttributeValue};

/// What an expression can ask of a published device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PublishedDevice {
    /// What errors call it, `driver/pool/device`.
    pub id: String,
    /// Whose it is.
    pub driver: String,
    /// Its facts by qualified name.
    pub attributes: BTreeMap<AttributeName, AttributeValue>,
    /// Its amounts by qualified name.
    pub capacity: BTreeMap<AttributeName, Amount>,
    /// Whether several may have it.
    pub allow_multiple_allocations: bool,
}

/// A CEL expression about a published device, as Kubernetes has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishedExpression(DeviceExpression);

const FIELDS: [&str; 4] = ["allowMultipleAllocations", "attributes", "capacity", "driver"];

// === impl PublishedExpression ===

impl PublishedExpression {
    /// Whether the device is selected.
    pub fn matches(&self, device: &PublishedDevice) -> Result<bool, NoAnswer> {
        self.0.evaluate(variable(device), &device.id)
    }
}

impl FromStr for PublishedExpression {
    type Err = InvalidExpression;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        DeviceExpression::about(&FIELDS, text).map(Self)
    }
}

fn variable<'v>(device: &'v PublishedDevice) -> Box<dyn Val + 'v> {
    let attributes = device.attributes.iter().map(|(name, value)| (name, facts::attribute(value)));
    let capacity = device.capacity.iter().map(|(name, amount)| {
        let amount: Box<dyn Val> = Box::new(*amount);
        (name, amount)
    });
    let fields: [Box<dyn Val + 'v>; 4] = [
        Box::new(CelBool::from(device.allow_multiple_allocations)),
        Box::new(Domains::of(attributes)),
        Box::new(Domains::of(capacity)),
        Box::new(CelString::from(device.driver.as_str())),
    ];
    Box::new(facts::map(FIELDS.into_iter().zip(fields)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_published_device_has_a_driver_and_nothing_of_ours() {
        let name = |name| AttributeName::published("gpu.example.com", name);
        let device = PublishedDevice {
            id: "gpu.example.com/n1/gpu-0".to_owned(),
            driver: "gpu.example.com".to_owned(),
            attributes: [(name("model"), AttributeValue::string("A100"))].into(),
            capacity: [(name("memory"), Amount::parse("40Gi").expect("an amount"))].into(),
            allow_multiple_allocations: true,
        };
        for (text, expected) in [
            ("device.driver == 'gpu.example.com'", Ok(true)),
            ("device.attributes['gpu.example.com'].model == 'A100'", Ok(true)),
            ("device.capacity['gpu.example.com'].memory.isLessThan(quantity('40Gi'))", Ok(false)),
            ("device.allowMultipleAllocations", Ok(true)),
            ("has(device.attributes['other.com'].model)", Ok(false)),
        ] {
            let expression: PublishedExpression = text.parse().expect("an expression");
            assert_eq!(expression.matches(&device), expected, "{text}");
        }
        let lacks: PublishedExpression =
            "device.attributes['other.com'].model == 'x'".parse().expect("one");
        assert!(lacks.matches(&device).expect_err("there is no such attribute").is_lack());
        assert!("device.index == 0".parse::<PublishedExpression>().is_err());
        assert!("device.driver == 'd'".parse::<DeviceExpression>().is_err());
    }
}
