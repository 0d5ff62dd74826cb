//! CEL expressions from the selectors of other plugins. A selector has lists of values; a device must match one value
//! of each list.

use jiff::Timestamp;
use windlass_config::document::Diagnostics;
use windlass_core::{
    device::{Device, DeviceKind, SourceName},
    selector::{DeviceExpression, InvalidExpression, literal},
};

/// Conjunction of conditions on a device.
#[derive(Debug, Default)]
pub(super) struct Conditions(Vec<String>);

// === impl Conditions ===

impl Conditions {
    /// Requires that an attribute has one of the values. An empty list adds no condition.
    pub(super) fn one_of(&mut self, attribute: &str, values: &[String]) {
        match values {
            [] => {}
            [value] => self.0.push(format!("{} == {}", string_or_empty(attribute), literal(value))),
            values => {
                let values: Vec<_> = values.iter().map(|value| literal(value)).collect();
                self.0.push(format!("{} in [{}]", string_or_empty(attribute), values.join(", ")));
            }
        }
    }

    pub(super) fn and(&mut self, condition: impl Into<String>) {
        self.0.push(condition.into());
    }

    /// The conditions, joined by `&&`.
    pub(super) fn text(&self) -> String {
        joined(&self.0, " && ")
    }

    /// The expression; `None` without conditions, or if it is invalid.
    pub(super) fn into_expression(
        self,
        line: u64,
        diagnostics: &mut Diagnostics,
    ) -> Option<DeviceExpression> {
        if self.0.is_empty() {
            return None;
        }
        let parsed = self.text().parse();
        let problem = |error: InvalidExpression| diagnostics.error(line, error.to_string());
        parsed.map_err(problem).ok()
    }
}

/// Parses an expression and evaluates it once, since an invalid regular expression fails only then.
pub(super) fn checked(text: &str) -> Result<DeviceExpression, String> {
    let expression: DeviceExpression =
        text.parse().map_err(|error: InvalidExpression| error.to_string())?;
    let id = "any".parse().expect("a constant");
    let device = Device::new(id, DeviceKind::Other, SourceName::NICS, Timestamp::UNIX_EPOCH);
    expression.matches(&device).map_err(|error| error.to_string())?;
    Ok(expression)
}

/// The conditions, joined by `||`.
pub(super) fn any_of(conditions: &[String]) -> String {
    joined(conditions, " || ")
}

/// An attribute's string, empty if the device lacks it: an absent attribute would be an evaluation error.
pub(super) fn string_or_empty(attribute: &str) -> String {
    format!("{}.orValue(\"\")", optional(attribute))
}

/// An attribute's integer, -1 if the device lacks it.
pub(super) fn integer_or_default(attribute: &str) -> String {
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

/// Domain and name. The default domain is `windlass.dev`.
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
