//! Lint of expressions before discovery: values of the wrong type, misspelt names.
//!
//! In CEL, values of different types are unequal without an error, so such a rule would never match.

use std::collections::BTreeSet;

use windlass_core::selector::{
    Comparison, DeviceExpression, EvaluationError, Literal, Reference, ValueType, nearest,
};

use crate::sample_device::{OtherAttributes, SampleDevice};

/// The problems of an expression about devices like the sample, each with its position.
pub(super) fn check(expression: &DeviceExpression, sample: &SampleDevice) -> Vec<String> {
    let with_position = |reference: &Reference, problem: String| {
        format!("match: {}", expression.with_position(reference.name(), &problem))
    };
    let mut problems = Vec::new();
    for comparison in expression.comparisons() {
        let problem = type_mismatch(&comparison, sample);
        problems.extend(problem.map(|problem| with_position(&comparison.reference, problem)));
    }
    for reference in expression.references() {
        let problem = unknown_attribute(&reference, sample);
        problems.extend(problem.map(|problem| with_position(&reference, problem)));
    }
    let mut unique = BTreeSet::new();
    problems.retain(|text| unique.insert(text.clone()));
    if problems.is_empty() {
        problems.extend(type_error_of(expression, sample).map(|error| error.to_string()));
    }
    problems
}

/// Type error that an expression has for every device like the sample.
fn type_error_of(expression: &DeviceExpression, sample: &SampleDevice) -> Option<EvaluationError> {
    expression.matches(&sample.device).err().filter(EvaluationError::is_type_error)
}

/// Error message for a comparison with a value of another type.
fn type_mismatch(
    Comparison { reference, literal }: &Comparison,
    sample: &SampleDevice,
) -> Option<String> {
    let (expected, name) = (reference.type_in(&sample.device)?, reference.name());
    if expected == literal.value_type() {
        return None;
    }
    let advice = match (expected, literal) {
        (_, Literal::Other) => "test for a missing attribute with has()".to_owned(),
        (ValueType::Text, _) => "write a string in quotes, as the device shows it".to_owned(),
        (ValueType::Number, Literal::Text(text)) if text.parse::<i64>().is_ok() => {
            format!("write {text}, without quotes")
        }
        (ValueType::Number, _) => "write a number, without quotes".to_owned(),
        (ValueType::Boolean, Literal::Text(text)) if text.parse::<bool>().is_ok() => {
            format!("write {text}, without quotes")
        }
        (ValueType::Boolean, _) => "write true or false, or use the attribute alone".to_owned(),
        (ValueType::Version, _) => "write semver(\"1.2.3\")".to_owned(),
        (ValueType::Quantity, _) => "write quantity(\"3\"), or quantity(\"40Gi\")".to_owned(),
        (ValueType::Other, _) => return None,
    };
    let example =
        EXAMPLES.iter().find(|(attribute, _)| *attribute == name && expected == ValueType::Text);
    let example = example.map(|(_, text)| format!(" such as \"{text}\"")).unwrap_or_default();
    Some(format!(
        "{name} is {expected}{example}, and {literal} is {}: {advice}",
        literal.value_type()
    ))
}

/// Attributes whose strings look like numbers, with an example.
const EXAMPLES: &[(&str, &str)] = &[
    ("acpiIndex", "3"),
    ("iommuGroup", "42"),
    ("pciClass", "0x120000"),
    ("pciDevice", "7024"),
    ("pciSubsystemDevice", "000e"),
    ("pciSubsystemVendor", "10ee"),
    ("pciVendor", "10ee"),
    ("port", "6001"),
    ("usbInterfaceClass", "03"),
    ("usbPort", "0000:00:14.0-0-4"),
    ("usbProduct", "6001"),
    ("usbVendor", "0403"),
];

/// Error message for an attribute that no device like the sample has.
fn unknown_attribute(reference: &Reference, sample: &SampleDevice) -> Option<String> {
    let Reference::Attribute(domain, name) = reference else { return None };
    let attributes = sample.device.attributes.keys().map(|key| (key.domain(), key.name()));
    let known: BTreeSet<_> = attributes.chain(sample.varying.iter().copied()).collect();
    let domains: BTreeSet<_> = known.iter().map(|(domain, _)| *domain).collect();
    if !domains.contains(domain.as_str()) {
        let problem = format!("no such device has attributes of {domain}");
        return problem_with_advice(&problem, domain, &domains, sample.others);
    }
    let names: BTreeSet<_> = known
        .iter()
        .filter(|attribute| attribute.0 == domain)
        .map(|attribute| attribute.1)
        .collect();
    if names.contains(name.as_str()) {
        return None;
    }
    problem_with_advice(
        &format!("no such device has {name} of {domain}"),
        name,
        &names,
        sample.others,
    )
}

/// The problem with advice; `None` if devices may have such an attribute ([`OtherAttributes`]).
fn problem_with_advice(
    problem: &str,
    word: &str,
    known: &BTreeSet<&str>,
    others: OtherAttributes,
) -> Option<String> {
    match (nearest(word, known.iter().copied()), others) {
        (_, OtherAttributes::Any) | (None, OtherAttributes::Few) => None,
        (Some(suggestion), _) => Some(format!("{problem}: did you mean {suggestion}?")),
        (None, OtherAttributes::None) => {
            let known: Vec<_> = known.iter().copied().collect();
            Some(format!("{problem}: there are {}", known.join(", ")))
        }
    }
}
