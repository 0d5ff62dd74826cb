//! Attributes that a source declares or reads from files. The configuration has their names without the domain.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use windlass_core::attribute::AttributeName;

use super::DOMAIN;

/// Value of a declared attribute: a boolean, an integer or a string.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum Fact {
    Boolean(bool),
    Number(i64),
    Text(String),
}

/// Reads a map with attribute names as keys.
pub(super) fn deserialize<'de, D, V>(
    deserializer: D,
) -> Result<BTreeMap<AttributeName, V>, D::Error>
where
    D: Deserializer<'de>,
    V: Deserialize<'de>,
{
    let with_name = |(name, value): (String, V)| match AttributeName::try_new(DOMAIN, &name) {
        Some(name) => Ok((name, value)),
        None => Err(D::Error::custom(format!("{name:?} cannot name an attribute"))),
    };
    BTreeMap::deserialize(deserializer)?.into_iter().map(with_name).collect()
}

/// Writes a map with attribute names as keys.
pub(super) fn serialize<S, V>(
    values: &BTreeMap<AttributeName, V>,
    serializer: S,
) -> Result<S::Ok, S::Error>
where
    S: Serializer,
    V: Serialize,
{
    serializer.collect_map(values.iter().map(|(name, value)| (name.name(), value)))
}

/// Serde of declared attributes.
pub(super) mod facts {
    use windlass_core::attribute::{AttributeValue, Attributes, MAX_VALUE_CHARS};

    use super::*;

    pub(in super::super) fn deserialize<'de, D>(deserializer: D) -> Result<Attributes, D::Error>
    where
        D: Deserializer<'de>,
    {
        let value = |(name, fact): (AttributeName, Fact)| match fact {
            Fact::Boolean(truth) => Ok((name, AttributeValue::Bool(truth))),
            Fact::Number(number) => Ok((name, AttributeValue::Int(number))),
            Fact::Text(text) if text.chars().count() <= MAX_VALUE_CHARS => {
                Ok((name, AttributeValue::String(text)))
            }
            Fact::Text(_) => Err(D::Error::custom(format!(
                "{}: an attribute has at most {MAX_VALUE_CHARS} characters",
                name.name()
            ))),
        };
        super::deserialize(deserializer)?.into_iter().map(value).collect()
    }

    pub(in super::super) fn serialize<S>(
        attributes: &Attributes,
        serializer: S,
    ) -> Result<S::Ok, S::Error>
    where
        S: Serializer,
    {
        let fact = |value: &AttributeValue| match value {
            AttributeValue::Bool(truth) => Fact::Boolean(*truth),
            AttributeValue::Int(number) => Fact::Number(*number),
            AttributeValue::String(text) | AttributeValue::Version(text) => {
                Fact::Text(text.clone())
            }
        };
        serializer.collect_map(attributes.iter().map(|(name, value)| (name.name(), fact(value))))
    }
}
