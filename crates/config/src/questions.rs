//! What an expression asks that no device answers, told before there is a device: a value of another sort, a
//! name that is misspelt.
//!
//! CEL takes two values of different sorts for unequal and says nothing, so that such a rule would never find
//! a device.

use std::collections::BTreeSet;

use windlass_core::selector::{
    Asked, Comparison, DeviceExpression, Literal, NoAnswer, Type, nearest,
};

use super::specimen::{Others, Specimen};

/// Everything that is wrong with an expression about such devices, each with its place.
pub(super) fn mistakes(expression: &DeviceExpression, specimen: &Specimen) -> Vec<String> {
    let told = |asked: &Asked, problem: String| {
        format!("match: {}", expression.located(asked.name(), &problem))
    };
    let mut all = Vec::new();
    for comparison in expression.comparisons() {
        let problem = other_sort(&comparison, specimen);
        all.extend(problem.map(|problem| told(&comparison.asked, problem)));
    }
    for asked in expression.asked() {
        let problem = unknown(&asked, specimen);
        all.extend(problem.map(|problem| told(&asked, problem)));
    }
    let mut seen = BTreeSet::new();
    all.retain(|text| seen.insert(text.clone()));
    if all.is_empty() {
        all.extend(misuse(expression, specimen).map(|misuse| misuse.to_string()));
    }
    all
}

/// Why an expression has no answer for any such device: what it asks of a value is of another type.
fn misuse(expression: &DeviceExpression, specimen: &Specimen) -> Option<NoAnswer> {
    expression.matches(&specimen.device).err().filter(NoAnswer::is_misuse)
}

/// That a value is compared with one of another sort.
fn other_sort(Comparison { asked, literal }: &Comparison, specimen: &Specimen) -> Option<String> {
    let (sort, name) = (asked.type_in(&specimen.device)?, asked.name());
    if sort == literal.sort() {
        return None;
    }
    let advice = match (sort, literal) {
        (_, Literal::Other) => "what a device lacks is asked for with has()".to_owned(),
        (Type::Text, _) => "write a text in quotes, as the device says it".to_owned(),
        (Type::Number, Literal::Text(text)) if text.parse::<i64>().is_ok() => {
            format!("write {text}, without quotes")
        }
        (Type::Number, _) => "write a number, without quotes".to_owned(),
        (Type::Truth, Literal::Text(text)) if text.parse::<bool>().is_ok() => {
            format!("write {text}, without quotes")
        }
        (Type::Truth, _) => "write true or false, or nothing beside it".to_owned(),
        (Type::Version, _) => "write semver(\"1.2.3\")".to_owned(),
        (Type::Quantity, _) => "write quantity(\"3\"), or quantity(\"40Gi\")".to_owned(),
        (Type::Other, _) => return None,
    };
    let such = EXAMPLES.iter().find(|(known, _)| *known == name && sort == Type::Text);
    let such = such.map(|(_, such)| format!(" such as \"{such}\"")).unwrap_or_default();
    Some(format!("{name} is {sort}{such}, and {literal} is {}: {advice}", literal.sort()))
}

/// What some texts look like, so that nobody takes them for numbers.
const EXAMPLES: [(&str, &str); 12] = [
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

/// That no such device has an attribute. What only some of them have is known.
fn unknown(asked: &Asked, specimen: &Specimen) -> Option<String> {
    let Asked::Attribute(domain, name) = asked else { return None };
    let attributes = specimen.device.attributes.keys().map(|key| (key.domain(), key.name()));
    let known: BTreeSet<_> = attributes.chain(specimen.either.iter().copied()).collect();
    let domains: BTreeSet<_> = known.iter().map(|(domain, _)| *domain).collect();
    if !domains.contains(domain.as_str()) {
        let problem = format!("no such device has attributes of {domain}");
        return advised(&problem, domain, &domains, specimen.others);
    }
    let names: BTreeSet<_> = known.iter().filter(|it| it.0 == domain).map(|it| it.1).collect();
    if names.contains(name.as_str()) {
        return None;
    }
    advised(&format!("no such device has {name} of {domain}"), name, &names, specimen.others)
}

/// The problem with what is right, if it is one.
fn advised(problem: &str, word: &str, known: &BTreeSet<&str>, others: Others) -> Option<String> {
    match (nearest(word, known.iter().copied()), others) {
        (_, Others::Any) | (None, Others::Few) => None,
        (Some(near), _) => Some(format!("{problem}: did you mean {near}?")),
        (None, Others::None) => {
            let known: Vec<_> = known.iter().copied().collect();
            Some(format!("{problem}: there are {}", known.join(", ")))
        }
    }
}
