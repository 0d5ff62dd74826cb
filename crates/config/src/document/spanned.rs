//! Wrappers for values in a document: a value with its line, and a list that may be written as a single value.

use std::{borrow::Cow, fmt, marker::PhantomData};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error as _, SeqAccess, Visitor},
};

/// A value and its line. Only the reader of this module can deserialize it.
#[derive(Clone, Debug)]
pub struct Spanned<T> {
    /// The line, from 1.
    pub line: u64,
    /// The value.
    pub value: T,
}

/// A list that may be written as a single value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OneOrMany<T>(pub Vec<T>);

/// Names of newtypes by which the reader recognises these wrappers.
pub(super) const SPANNED: &str = "Spanned";
pub(super) const ONE_OR_MANY: &str = "OneOrMany";

// === impl Spanned ===

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Spanned<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_newtype_struct(SPANNED, SpannedVisitor(PhantomData))
    }
}

struct SpannedVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for SpannedVisitor<T> {
    type Value = Spanned<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value with its line")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Spanned<T>, A::Error> {
        let missing_part = || A::Error::custom("a value with its line has two parts");
        let line = parts.next_element()?.ok_or_else(missing_part)?;
        let value = parts.next_element()?.ok_or_else(missing_part)?;
        Ok(Spanned { line, value })
    }
}

// === impl OneOrMany ===

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OneOrMany<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_newtype_struct(ONE_OR_MANY, OneOrManyVisitor(PhantomData))
    }
}

struct OneOrManyVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for OneOrManyVisitor<T> {
    type Value = OneOrMany<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("one value or a list of them")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<OneOrMany<T>, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(OneOrMany(list))
    }
}

/// For `#[serde(with)]`: a field is any collection.
impl<T> OneOrMany<T> {
    pub(crate) fn deserialize<'de, D, C>(deserializer: D) -> Result<C, D::Error>
    where
        D: Deserializer<'de>,
        C: FromIterator<T>,
        T: Deserialize<'de>,
    {
        let Self(list) = Deserialize::deserialize(deserializer)?;
        Ok(list.into_iter().collect())
    }

    pub(crate) fn serialize<'c, S, C>(list: &'c C, serializer: S) -> Result<S::Ok, S::Error>
    where
        S: Serializer,
        &'c C: IntoIterator<Item = &'c T>,
        T: Serialize + 'c,
    {
        let list: Vec<_> = list.into_iter().collect();
        match list.as_slice() {
            [value] => value.serialize(serializer),
            list => list.serialize(serializer),
        }
    }
}

impl<T: JsonSchema> JsonSchema for OneOrMany<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("{}OrMore", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let item = generator.subschema_for::<T>();
        json_schema!({ "anyOf": [item, { "type": "array", "items": item }] })
    }
}
