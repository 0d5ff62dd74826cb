//! Devices selected by an expression: CEL, as Dynamic Resource Allocation has it, over the same
//! attributes.

use std::{collections::HashMap, fmt, str::FromStr, sync::Arc};

use cel::{Context, Program, Value};

use crate::{
    attribute::{AttributeName, AttributeValue, Quantity},
    device::Device,
};

/// A CEL expression about `device`, parsed once; two with the same text are equal.
#[derive(Clone)]
pub struct DeviceExpression {
    text: Arc<str>,
    program: Arc<Program>,
}

/// Why a text is no expression about a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no CEL expression: {problem}")]
pub struct InvalidExpression {
    text: String,
    problem: String,
}

/// Why an expression has no answer for a device, such as an attribute that the device lacks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{expression:?} has no answer for this device: {problem}")]
pub struct NoAnswer {
    expression: String,
    problem: String,
}

// === impl DeviceExpression ===

impl DeviceExpression {
    /// The expression as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether the device is selected.
    pub fn matches(&self, device: &Device) -> Result<bool, NoAnswer> {
        let no_answer = |problem: String| NoAnswer { expression: self.text.to_string(), problem };
        let mut context = Context::default();
        context.add_variable_from_value("device", variable(device));
        match self.program.execute(&context) {
            Ok(Value::Bool(answer)) => Ok(answer),
            Ok(other) => Err(no_answer(format!("{other:?} is neither true nor false"))),
            Err(error) => Err(no_answer(error.to_string())),
        }
    }
}

impl FromStr for DeviceExpression {
    type Err = InvalidExpression;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let program = Program::compile(text).map_err(|error| InvalidExpression {
            text: text.to_owned(),
            problem: error.to_string(),
        })?;
        Ok(Self { text: text.into(), program: Arc::new(program) })
    }
}

impl PartialEq for DeviceExpression {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for DeviceExpression {}

impl fmt::Debug for DeviceExpression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, f)
    }
}

/// `device.attributes["nvidia.com"].index`, `device.capacity["nvidia.com"].memory`.
fn variable(device: &Device) -> HashMap<String, Value> {
    let attributes = device.attributes.iter().map(|(name, value)| (name, attribute(value)));
    let capacity = device.capacity.iter().map(|(name, amount)| (name, quantity(*amount)));
    HashMap::from([
        ("attributes".to_owned(), by_domain(attributes)),
        ("capacity".to_owned(), by_domain(capacity)),
    ])
}

fn by_domain<'a>(values: impl Iterator<Item = (&'a AttributeName, Value)>) -> Value {
    let mut domains: HashMap<String, HashMap<String, Value>> = HashMap::new();
    for (name, value) in values {
        let domain = domains.entry(name.domain().to_owned()).or_default();
        domain.insert(name.name().to_owned(), value);
    }
    domains.into()
}

fn attribute(value: &AttributeValue) -> Value {
    match value {
        AttributeValue::String(text) | AttributeValue::Version(text) => text.clone().into(),
        AttributeValue::Int(number) => (*number).into(),
        AttributeValue::Bool(truth) => (*truth).into(),
    }
}

fn quantity(amount: Quantity) -> Value {
    let (Quantity::Bytes(number) | Quantity::Count(number)) = amount;
    i64::try_from(number).unwrap_or(i64::MAX).into()
}
