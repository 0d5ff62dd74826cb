//! Expressions over attributes, made of what other plugins select by: lists of values, of which one
//! has to fit, and several lists, all of which have to.

use jiff::Timestamp;
use windlass_config::document::Diagnostics;
use windlass_core::{
    device::{Device, DeviceKind, SourceName},
    selector::{DeviceExpression, InvalidExpression, literal},
};

/// Conditions on a device, all of which have to hold.
#[derive(Debug, Default)]
pub(super) struct All(Vec<String>);

// === impl All ===

impl All {
    /// Adds that an attribute has one of the values; a list of none says nothing.
    pub(super) fn one_of(&mut self, attribute: &str, values: &[String]) {
        match values {
            [] => {}
            [value] => self.0.push(format!("{} == {}", text(attribute), literal(value))),
            values => {
                let values: Vec<_> = values.iter().map(|value| literal(value)).collect();
                self.0.push(format!("{} in [{}]", text(attribute), values.join(", ")));
            }
        }
    }

    /// Adds a condition.
    pub(super) fn and(&mut self, condition: impl Into<String>) {
        self.0.push(condition.into());
    }

    /// The conditions as one.
    pub(super) fn text(&self) -> String {
        joined(&self.0, " && ")
    }

    /// The expression, unless it says nothing or cannot be.
    pub(super) fn into_expression(
        self,
        line: u64,
        diagnostics: &mut Diagnostics,
    ) -> Option<DeviceExpression> {
        if self.0.is_empty() {
            return None;
        }
        let parsed = self.text().parse();
        let problem = |error: InvalidExpression| diagnostics.wrong(line, error.to_string());
        parsed.map_err(problem).ok()
    }
}

/// An expression that has an answer: a pattern that is none shows only when it is asked.
pub(super) fn answered(text: &str) -> Result<DeviceExpression, String> {
    let expression: DeviceExpression =
        text.parse().map_err(|error: InvalidExpression| error.to_string())?;
    let id = "any".parse().expect("a constant");
    let anything = Device::new(id, DeviceKind::Other, SourceName::NICS, Timestamp::UNIX_EPOCH);
    expression.matches(&anything).map_err(|error| error.to_string())?;
    Ok(expression)
}

/// One of several conditions.
pub(super) fn any(conditions: &[String]) -> String {
    joined(conditions, " || ")
}

/// An attribute's text, empty where the device lacks it: without, an expression has no answer.
pub(super) fn text(attribute: &str) -> String {
    format!("{}.orValue(\"\")", optional(attribute))
}

/// An attribute's number, -1 where the device lacks it.
pub(super) fn number(attribute: &str) -> String {
    format!("{}.orValue(-1)", optional(attribute))
}

/// True if the device has an attribute.
pub(super) fn has(attribute: &str) -> String {
    let (domain, name) = qualified(attribute);
    format!("has(device.attributes[{}].{name})", literal(domain))
}

fn optional(attribute: &str) -> String {
    let (domain, name) = qualified(attribute);
    format!("device.attributes[{}].?{name}", literal(domain))
}

/// Attributes without a domain are ours.
fn qualified(attribute: &str) -> (&str, &str) {
    attribute.rsplit_once('/').unwrap_or(("windlass.dev", attribute))
}

fn joined(conditions: &[String], operator: &str) -> String {
    match conditions {
        [only] => only.clone(),
        several => {
            let other = if operator == " && " { " || " } else { " && " };
            let part =
                |it: &String| if it.contains(other) { format!("({it})") } else { it.clone() };
            several.iter().map(part).collect::<Vec<_>>().join(operator)
        }
    }
}
