//! Words of the file that are more than text: durations, names, profiles, expressions, channels.

use std::{borrow::Cow, fmt, net::SocketAddr, str::FromStr, time::Duration};

use jiff::SignedDuration;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use windlass_core::{
    device::{Access, DeviceId, SourceName},
    placement,
    resource::ResourceName,
    selector::{Amount, DeviceExpression},
};

use crate::{AnnotationPrefix, DeviceProfile, DriverName, Replicas, profile};

/// What is written as text and checked while it is read.
pub(super) trait Word: Sized {
    /// What the schema says of it.
    fn schema() -> Schema;
    fn read(text: &str) -> Result<Self, String>;
    fn write(&self) -> String;
}

/// A word of the file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Written<T>(pub(super) T);

/// A time that passes.
pub(super) type Pause = Written<Duration>;

/// How often one device is offered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Count(pub(super) Replicas);

/// A number of an IMEX channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Channel(pub(super) u32);

/// A device's id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Id(pub(super) String);

/// A MIG profile.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Profile(pub(super) String);

/// The first part of resource names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ResourceDomain(pub(super) String);

/// Shorter ones keep the agent busy, longer ones are a slip of the pen.
const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// The driver's default number of channels (`NVreg_ImexChannelCount`).
pub(crate) const IMEX_CHANNELS: u32 = 2048;

// === impl Written ===

impl<'de, T: Word> Deserialize<'de> for Written<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        T::read(&text).map(Self).map_err(D::Error::custom)
    }
}

impl<T: Word> Serialize for Written<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0.write())
    }
}

impl<T: Word> JsonSchema for Written<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Word".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        T::schema()
    }
}

/// Reads what has a form of its own, whose error says what to write.
fn parsed<T: FromStr<Err: fmt::Display>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: T::Err| error.to_string())
}

impl Word for Duration {
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
            text.parse().map_err(|_| format!("{text:?} is no duration: {expected}"))?;
        match Self::try_from(parsed) {
            Ok(within) if (SHORTEST..=LONGEST).contains(&within) => Ok(within),
            _ => Err(format!("{text:?} is not between 10ms and 24h: {expected}")),
        }
    }

    fn write(&self) -> String {
        let (seconds, rest) = (self.as_secs(), self.subsec_nanos());
        match (seconds, rest) {
            (_, 0) => format!("{seconds}s"),
            (0, _) if rest % 1_000_000 == 0 => format!("{}ms", rest / 1_000_000),
            _ => format!("{seconds}s {rest}ns"),
        }
    }
}

/// An amount of memory in whole mebibytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mebibytes(pub(super) u64);

const MIB: u64 = 1 << 20;

impl Mebibytes {
    pub(super) fn of(bytes: u64) -> Self {
        Self(bytes / MIB)
    }

    pub(super) fn bytes(self) -> u64 {
        self.0.saturating_mul(MIB)
    }
}

impl Word for Mebibytes {
    fn schema() -> Schema {
        json_schema!({ "type": "string", "pattern": "^[0-9]", "examples": ["128Mi", "1Gi"] })
    }

    fn read(text: &str) -> Result<Self, String> {
        let bytes = Amount::parse(text).map(Amount::rounded_up);
        let bytes = bytes.and_then(|bytes| u64::try_from(bytes).ok());
        let whole = bytes.filter(|bytes| bytes % MIB == 0).map(Self::of);
        whole.ok_or_else(|| format!("{text:?} is no amount of memory: write 128Mi or 1Gi, say"))
    }

    fn write(&self) -> String {
        format!("{}Mi", self.0)
    }
}

impl Word for placement::Policy {
    fn schema() -> Schema {
        json_schema!({ "type": "string", "enum": Self::ALL.map(Self::name) })
    }

    fn read(text: &str) -> Result<Self, String> {
        parsed(text)
    }

    fn write(&self) -> String {
        self.to_string()
    }
}

impl Word for ResourceDomain {
    fn schema() -> Schema {
        json_schema!({ "type": "string", "examples": ["smarter-devices"] })
    }

    fn read(text: &str) -> Result<Self, String> {
        parsed::<ResourceName>(&format!("{text}/x")).map(|_| Self(text.to_owned()))
    }

    fn write(&self) -> String {
        self.0.clone()
    }
}

impl Word for SourceName {
    fn schema() -> Schema {
        json_schema!({ "type": "string", "pattern": "^[a-z]([a-z0-9-]{0,22}[a-z0-9])?$" })
    }

    fn read(text: &str) -> Result<Self, String> {
        parsed(text)
    }

    fn write(&self) -> String {
        self.to_string()
    }
}

impl Word for DriverName {
    fn schema() -> Schema {
        json_schema!({ "type": "string", "pattern": "^[a-z0-9.-]{1,63}$" })
    }

    fn read(text: &str) -> Result<Self, String> {
        parsed(text)
    }

    fn write(&self) -> String {
        self.to_string()
    }
}

impl Word for DeviceProfile {
    fn schema() -> Schema {
        let names: Vec<_> = Self::ALL.iter().map(|profile| profile.name).collect();
        json_schema!({ "type": "string", "enum": names })
    }

    fn read(text: &str) -> Result<Self, String> {
        parsed(text)
    }

    fn write(&self) -> String {
        self.name.to_owned()
    }
}

impl Word for Access {
    fn schema() -> Schema {
        json_schema!({ "type": "string", "enum": ["r", "w", "rw", "rwm"] })
    }

    fn read(text: &str) -> Result<Self, String> {
        parsed(text)
    }

    fn write(&self) -> String {
        self.to_string()
    }
}

impl Word for ResourceName {
    fn schema() -> Schema {
        json_schema!({
            "type": "string",
            "pattern": "^[a-z0-9.-]+/[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$",
            "examples": ["nvidia.com/gpu"],
        })
    }

    fn read(text: &str) -> Result<Self, String> {
        parsed(text)
    }

    fn write(&self) -> String {
        self.to_string()
    }
}

impl Word for DeviceExpression {
    fn schema() -> Schema {
        json_schema!({
            "type": "string",
            "minLength": 1,
            "examples": ["device.attributes[\"nvidia.com\"].productName.matches(\"A100\")"],
        })
    }

    fn read(text: &str) -> Result<Self, String> {
        parsed(text)
    }

    fn write(&self) -> String {
        self.as_str().to_owned()
    }
}

impl Word for AnnotationPrefix {
    fn schema() -> Schema {
        json_schema!({ "type": "string", "pattern": "^[a-z0-9.-]+/$" })
    }

    fn read(text: &str) -> Result<Self, String> {
        parsed(text)
    }

    fn write(&self) -> String {
        self.as_str().to_owned()
    }
}

/// Where somebody listens, as written: an address with a port.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    let wrong = |_| format!("{text:?} is no address: write it like 0.0.0.0:9400 or [::]:9400");
    text.parse().map_err(wrong)
}

impl Word for SocketAddr {
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

impl Word for Id {
    fn schema() -> Schema {
        json_schema!({ "type": "string", "pattern": "^[A-Za-z0-9._:-]{1,63}$" })
    }

    fn read(text: &str) -> Result<Self, String> {
        parsed::<DeviceId>(text).map(|_| Self(text.to_owned()))
    }

    fn write(&self) -> String {
        self.0.clone()
    }
}

impl Word for Profile {
    fn schema() -> Schema {
        json_schema!({
            "type": "string",
            "pattern": "^([1-8]c\\.)?[1-8]g\\.[1-9][0-9]{0,3}gb([+-][A-Za-z0-9.,+-]+)?$",
            "examples": ["1g.10gb", "1g.10gb+me"],
        })
    }

    fn read(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{text:?} is no MIG profile that a GPU could have: write it as `nvidia-smi mig -lgip` \
                 does, such as 1g.10gb or 1g.10gb+me, with 1 to 8 slices"
            )
        };
        profile::is_possible(text).then(|| Self(text.to_owned())).ok_or_else(wrong)
    }

    fn write(&self) -> String {
        self.0.clone()
    }
}

// === impl Count ===

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let count = u64::deserialize(deserializer)?;
        Replicas::try_from(count).map(Self).map_err(D::Error::custom)
    }
}

impl Serialize for Count {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u32(self.0.get())
    }
}

impl JsonSchema for Count {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Count".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "integer", "minimum": 1, "maximum": Replicas::MAX })
    }
}

// === impl Channel ===

impl<'de> Deserialize<'de> for Channel {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = i64::deserialize(deserializer)?;
        let known = u32::try_from(number).ok().filter(|number| *number < IMEX_CHANNELS);
        known.map(Self).ok_or_else(|| {
            let last = IMEX_CHANNELS - 1;
            D::Error::custom(format!("IMEX channel {number} does not exist: write 0 to {last}"))
        })
    }
}

impl Serialize for Channel {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u32(self.0)
    }
}

impl JsonSchema for Channel {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Channel".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "integer", "minimum": 0, "maximum": IMEX_CHANNELS - 1 })
    }
}
