//! CEL selectors of claims and device classes, over devices as ResourceSlices publish them.

use std::{
    collections::{BTreeMap, BTreeSet},
    str::FromStr,
    sync::Arc,
};

use cel::common::{
    types::{CelBool, CelMap, CelString},
    value::Val,
};

use super::{
    DeviceExpression, EvaluationError, InvalidExpression,
    quantity::Amount,
    variable::{self, Domains},
};
use crate::attribute::{AttributeName, AttributeValue};

/// A published device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PublishedDevice {
    /// Name in errors, `driver/pool/device`.
    pub id: String,
    /// DRA driver.
    pub driver: String,
    /// Attributes by qualified name.
    pub attributes: BTreeMap<AttributeName, AttributeValue>,
    /// Capacities by qualified name.
    pub capacity: BTreeMap<AttributeName, Amount>,
    /// True if several claims may share it.
    pub allow_multiple_allocations: bool,
}

/// A published device as the value of `device`, built once for many expressions.
#[derive(Clone, Debug)]
pub struct PreparedDevice {
    id: String,
    variable: Arc<CelMap<'static>>,
}

/// CEL expression about a published device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishedExpression(DeviceExpression);

const FIELDS: [&str; 4] = ["allowMultipleAllocations", "attributes", "capacity", "driver"];

// === impl PublishedExpression ===

impl PublishedExpression {
    /// True if the device is selected.
    pub fn matches(&self, device: &PublishedDevice) -> Result<bool, EvaluationError> {
        self.selects(&PreparedDevice::from(device))
    }

    /// The attributes that the answer depends on; `None` if it may depend on any.
    pub fn read_attributes(&self) -> Option<BTreeSet<AttributeName>> {
        self.0.read_attributes()
    }

    /// True if the prepared device is selected.
    pub fn selects(&self, device: &PreparedDevice) -> Result<bool, EvaluationError> {
        self.0.evaluate(&*device.variable, &device.id)
    }
}

impl FromStr for PublishedExpression {
    type Err = InvalidExpression;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        DeviceExpression::parse_with_fields(&FIELDS, text).map(Self)
    }
}

// === impl PreparedDevice ===

impl PreparedDevice {
    /// Name in errors, `driver/pool/device`.
    pub fn id(&self) -> &str {
        &self.id
    }
}

impl From<&PublishedDevice> for PreparedDevice {
    fn from(device: &PublishedDevice) -> Self {
        let string = |text: &str| CelString::from(text.to_owned());
        let key = |name: &AttributeName| (name.domain().to_owned(), name.name().to_owned());
        let attributes = device.attributes.iter();
        let attributes =
            attributes.map(|(name, value)| (key(name), variable::attribute(value, string)));
        let capacity = device.capacity.iter().map(|(name, amount)| {
            let amount: Box<dyn Val> = Box::new(*amount);
            (key(name), amount)
        });
        let fields: [Box<dyn Val>; 4] = [
            Box::new(CelBool::from(device.allow_multiple_allocations)),
            Box::new(Domains::of(attributes)),
            Box::new(Domains::of(capacity)),
            Box::new(string(&device.driver)),
        ];
        let variable = Arc::new(variable::map(FIELDS.into_iter().zip(fields)));
        Self { id: device.id.clone(), variable }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_published_device_has_dras_fields_and_none_of_windlass() {
        let name = |name| AttributeName::from_slice_name("gpu.example.com", name);
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
        let missing: PublishedExpression =
            "device.attributes['other.com'].model == 'x'".parse().expect("an expression");
        assert!(
            missing
                .matches(&device)
                .expect_err("there is no such attribute")
                .is_missing_attribute()
        );
        assert!("device.index == 0".parse::<PublishedExpression>().is_err());
        assert!("device.driver == 'd'".parse::<DeviceExpression>().is_err());
    }

    #[test]
    fn attributes_read_are_listed_unless_any_may_be_read() {
        let attributes = |text: &str| {
            let expression: PublishedExpression = text.parse().expect("an expression");
            let names = expression.read_attributes()?;
            Some(names.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
        };
        for (text, expected) in [
            ("device.driver == 'a' && device.allowMultipleAllocations", Some("")),
            ("device.capacity['a'].m.isLessThan(quantity('1'))", Some("")),
            ("device.capacity.size() > 0", Some("")),
            ("device.attributes['a'].b == 'x' || has(device.attributes['a'].c)", Some("a/b a/c")),
            ("device.attributes['a']['b'].startsWith('x')", Some("a/b")),
            ("device.attributes['a'].?b.orValue('') in ['x', device.driver]", Some("a/b")),
            ("['x'].exists(device, device == 'x')", Some("")),
            ("['b'].exists(it, device.attributes['a'].b == it)", Some("a/b")),
            ("['b'].exists(it, device.attributes['a'][it] == 'x')", None),
            ("'a' in device.attributes", None),
            ("device.attributes['a'].exists(it, it == 'b')", None),
            ("device.attributes['a'].b == 'x' && device.attributes['a'].size() > 1", None),
            ("[device].exists(it, it.driver == 'a')", None),
        ] {
            assert_eq!(attributes(text).as_deref(), expected, "{text}");
        }
    }
}
