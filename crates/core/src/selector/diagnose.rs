//! Reason why an expression does not select a device: the failing conjunct with the device's values.

use super::{DeviceExpression, Reference, in_a_line, nearest::nearest};
use crate::{attribute::AttributeName, device::Device};

// === impl DeviceExpression ===

impl DeviceExpression {
    /// Explains why the device is not selected; `None` for a selected device.
    ///
    /// Names the first conjunct that is false or fails to evaluate, with the device's values.
    pub fn explain_mismatch(&self, device: &Device) -> Option<String> {
        let answer = self.matches(device);
        if answer == Ok(true) {
            return None;
        }
        let conjuncts = self.conjuncts();
        // A false conjunct makes the whole expression false, even if other conjuncts fail to evaluate.
        let is_failing = |conjunct: &&Self| {
            matches!((conjunct.matches(device), &answer), (Ok(false), Ok(_)) | (Err(_), Err(_)))
        };
        let conjunct = conjuncts.iter().find(is_failing).unwrap_or(self);
        Some(match conjunct.matches(device) {
            Ok(_) => {
                format!("{} is false{}", in_a_line(conjunct.as_str()), conjunct.values(device))
            }
            Err(error) if error.is_missing_attribute() => {
                conjunct.missing_reference(device).unwrap_or(error.problem)
            }
            Err(error) => error.problem,
        })
    }

    /// The device's values of all references.
    fn values(&self, device: &Device) -> String {
        let mut references = self.references();
        references.dedup();
        let value = |reference: &Reference| {
            let name = reference.name();
            match reference.value_in(device) {
                Some(value) => format!("{name} is {value}"),
                None => format!("it has no {name}"),
            }
        };
        let values: Vec<_> = references.iter().map(value).collect();
        if values.is_empty() { String::new() } else { format!(": {}", values.join(", ")) }
    }

    /// The first reference that the device lacks, with a spelling suggestion.
    fn missing_reference(&self, device: &Device) -> Option<String> {
        let references = self.references();
        let missing = references.iter().find(|reference| reference.value_in(device).is_none())?;
        let names_in_domain = |domain: &str| {
            let keys = device.attributes.keys().chain(device.capacity.keys());
            keys.filter(|key| key.domain() == domain).map(AttributeName::name).collect::<Vec<_>>()
        };
        let suggestion = match missing {
            Reference::Attribute(domain, name) | Reference::Capacity(domain, name) => {
                let names = names_in_domain(domain);
                let suggestion = nearest(name, names.iter().copied());
                let domains = device.attributes.keys().map(AttributeName::domain);
                let suggestion = suggestion
                    .or_else(|| names.is_empty().then(|| nearest(domain, domains)).flatten());
                suggestion.map(|suggestion| format!(": did you mean {suggestion}?"))
            }
            Reference::Field(_) => None,
        };
        Some(format!("it has no {}{}", missing.name(), suggestion.unwrap_or_default()))
    }
}
