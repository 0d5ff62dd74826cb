//! Scalars that the file contains as text: durations, amounts of memory, names, expressions, addresses.

use std::{borrow::Cow, net::SocketAddr, time::Duration};

use jiff::SignedDuration;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use windlass_core::{
    device::{Access, DeviceId, DeviceKind, SourceName},
    placement,
    resource::ResourceName,
    selector::{Amount, DeviceExpression},
};

use crate::document::unknown_word;

/// A value that is written as text and checked while it is read.
pub(crate) trait Scalar: Sized {
    fn schema() -> Schema;
    /// Reads the text; the error says what to write.
    fn read(text: &str) -> Result<Self, String>;
    fn write(&self) -> String;
}

/// Serde implementation of a scalar. A field of type `T` or `Option<T>` uses it by `#[serde(with = "Text::<T>")]`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Text<T>(pub(crate) T);

/// A field that holds a scalar: `T` or `Option<T>`.
pub(crate) trait TextField<T> {
    fn new(value: T) -> Self;
    fn get(&self) -> Option<&T>;
}

/// Implements [`Scalar`] for types that are written as they are displayed.
macro_rules! displayed {
    ($($type:ty: $schema:tt)*) => {$(
        impl $crate::scalar::Scalar for $type {
            fn schema() -> ::schemars::Schema {
                ::schemars::json_schema!($schema)
            }

            fn read(text: &str) -> Result<Self, String> {
                text.parse().map_err(|error| format!("{error}"))
            }

            fn write(&self) -> String {
                self.to_string()
            }
        }
    )*};
}

pub(crate) use displayed;

displayed! {
    SourceName: { "type": "string", "pattern": "^[a-z]([a-z0-9-]{0,22}[a-z0-9])?$" }
    DeviceId: { "type": "string", "pattern": "^[A-Za-z0-9._:-]{1,63}$" }
    Access: { "type": "string", "enum": ["r", "w", "rw", "rwm"] }
    placement::Policy: { "type": "string", "enum": placement::Policy::ALL.map(placement::Policy::name) }
    ResourceName: {
        "type": "string",
        "pattern": "^[a-z0-9.-]+/[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$",
        "examples": ["nvidia.com/gpu"],
    }
}

/// Minimum and maximum duration. A shorter one would keep the agent busy; a longer one is a typing mistake.
const MIN_DURATION: Duration = Duration::from_millis(10);
const MAX_DURATION: Duration = Duration::from_secs(24 * 60 * 60);

const MIB: u64 = 1 << 20;

/// True for a value that a file may omit.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

// === impl Text ===

impl<T> TextField<T> for T {
    fn new(value: T) -> Self {
        value
    }

    fn get(&self) -> Option<&T> {
        Some(self)
    }
}

impl<T> TextField<T> for Option<T> {
    fn new(value: T) -> Self {
        Some(value)
    }

    fn get(&self) -> Option<&T> {
        self.as_ref()
    }
}

impl<T: Scalar> Text<T> {
    pub(crate) fn deserialize<'de, F, D>(deserializer: D) -> Result<F, D::Error>
    where
        F: TextField<T>,
        D: Deserializer<'de>,
    {
        let text = String::deserialize(deserializer)?;
        T::read(&text).map(F::new).map_err(D::Error::custom)
    }

    pub(crate) fn serialize<F, S>(field: &F, serializer: S) -> Result<S::Ok, S::Error>
    where
        F: TextField<T>,
        S: Serializer,
    {
        match field.get() {
            Some(value) => serializer.serialize_str(&value.write()),
            None => serializer.serialize_none(),
        }
    }
}

impl<'de, T: Scalar> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::deserialize(deserializer).map(Self)
    }
}

impl<T: Scalar> Serialize for Text<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0.write())
    }
}

impl<T: Scalar> JsonSchema for Text<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Text".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        T::schema()
    }
}

// === impl Scalar ===

impl Scalar for Duration {
    fn schema() -> Schema {
        json_schema!({
            "type": "string",
            "pattern": "^[0-9]",
            "examples": ["500ms", "60s", "5m"],
        })
    }

    fn read(text: &str) -> Result<Self, String> {
        let expected = "write a duration such as 500ms, 60s or 5m";
        let parsed: SignedDuration =
            text.parse().map_err(|_| format!("{text:?} is not a duration: {expected}"))?;
        match Self::try_from(parsed) {
            Ok(duration) if (MIN_DURATION..=MAX_DURATION).contains(&duration) => Ok(duration),
            _ => Err(format!("{text:?} is not between 10ms and 24h: {expected}")),
        }
    }

    fn write(&self) -> String {
        let (seconds, nanoseconds) = (self.as_secs(), self.subsec_nanos());
        match (seconds, nanoseconds) {
            (_, 0) => format!("{seconds}s"),
            (0, _) if nanoseconds % 1_000_000 == 0 => format!("{}ms", nanoseconds / 1_000_000),
            _ => format!("{seconds}s {nanoseconds}ns"),
        }
    }
}

/// Memory in bytes, written in whole mebibytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mebibytes(pub(crate) u64);

impl Scalar for Mebibytes {
    fn schema() -> Schema {
        json_schema!({ "type": "string", "pattern": "^[0-9]", "examples": ["128Mi", "1Gi"] })
    }

    fn read(text: &str) -> Result<Self, String> {
        let bytes = Amount::parse(text).map(Amount::ceil);
        let bytes = bytes.and_then(|bytes| u64::try_from(bytes).ok());
        let mebibytes = bytes.filter(|bytes| bytes % MIB == 0).map(Self);
        mebibytes.ok_or_else(|| {
            format!("{text:?} is not an amount of memory: write 128Mi or 1Gi, for example")
        })
    }

    fn write(&self) -> String {
        format!("{}Mi", self.0 / MIB)
    }
}

impl Scalar for DeviceKind {
    fn schema() -> Schema {
        let alternative = |kind: Self| {
            let facts = kind.facts();
            serde_json::json!({ "const": facts.name, "description": facts.plural })
        };
        let kinds: Vec<_> = Self::ALL.iter().copied().map(alternative).collect();
        json_schema!({ "oneOf": kinds })
    }

    fn read(text: &str) -> Result<Self, String> {
        let kind = Self::ALL.iter().copied().find(|kind| kind.facts().name == text);
        kind.ok_or_else(|| {
            let words: Vec<_> = Self::ALL.iter().map(|kind| kind.facts().name).collect();
            unknown_word(text, &words)
        })
    }

    fn write(&self) -> String {
        self.to_string()
    }
}

impl Scalar for DeviceExpression {
    fn schema() -> Schema {
        json_schema!({
            "type": "string",
            "minLength": 1,
            "examples": ["device.attributes[\"nvidia.com\"].productName.matches(\"A100\")"],
        })
    }

    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|error| format!("{error}"))
    }

    fn write(&self) -> String {
        self.as_str().to_owned()
    }
}

/// Parses an address to listen on, with its port.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    let error = |_| format!("{text:?} is not an address: write it like 0.0.0.0:9400 or [::]:9400");
    text.parse().map_err(error)
}

impl Scalar for SocketAddr {
    fn schema() -> Schema {
        json_schema!({
            "type": "string",
            "pattern": ":[0-9]{1,5}$",
            "examples": ["0.0.0.0:9400", "[::]:9400"],
        })
    }

    fn read(text: &str) -> Result<Self, String> {
        address(text)
    }

    fn write(&self) -> String {
        self.to_string()
    }
}
