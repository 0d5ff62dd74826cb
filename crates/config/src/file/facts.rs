//! The file's keys for what a source knows of its devices without looking: fixed attributes.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_core::attribute::{AttributeName, AttributeValue, Attributes, MAX_VALUE_CHARS};

/// A fact: a truth value, a whole number or a text.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum FactEntry {
    Truth(bool),
    Number(i64),
    Text(String),
}

/// Facts by the name of their attribute.
pub(super) type Facts = BTreeMap<String, FactEntry>;

/// The attributes of a domain that are written, and what is wrong with the others.
pub(super) fn attributes(domain: &'static str, facts: Facts) -> (Attributes, Vec<String>) {
    let (mut attributes, mut wrong) = (Attributes::new(), Vec::new());
    for (name, fact) in facts {
        match (AttributeName::given(domain, &name), fact.value()) {
            (Some(name), Some(value)) => drop(attributes.insert(name, value)),
            (None, _) => wrong.push(format!("{name:?} cannot name an attribute")),
            (_, None) => {
                wrong
                    .push(format!("{name}: an attribute has at most {MAX_VALUE_CHARS} characters"));
            }
        }
    }
    (attributes, wrong)
}

/// What has to be written for these attributes.
pub(super) fn facts(attributes: &Attributes) -> Facts {
    let fact = |value: &AttributeValue| match value {
        AttributeValue::Bool(truth) => FactEntry::Truth(*truth),
        AttributeValue::Int(number) => FactEntry::Number(*number),
        AttributeValue::String(text) | AttributeValue::Version(text) => {
            FactEntry::Text(text.clone())
        }
    };
    attributes.iter().map(|(name, value)| (name.name().to_owned(), fact(value))).collect()
}

// === impl FactEntry ===

impl FactEntry {
    fn value(self) -> Option<AttributeValue> {
        match self {
            Self::Truth(truth) => Some(AttributeValue::Bool(truth)),
            Self::Number(number) => Some(AttributeValue::Int(number)),
            Self::Text(text) => {
                let fits = text.chars().count() <= MAX_VALUE_CHARS;
                fits.then_some(AttributeValue::String(text))
            }
        }
    }
}
