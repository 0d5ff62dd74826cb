//! Durations, sizes and bit rates in the notation of the files: `12ms`, `60KiB`, `100Mbit`.

use std::{borrow::Cow, fmt, str::FromStr};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize, Serializer};

/// A duration in seconds, written `200us`, `12ms` or `1.5s`.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Deserialize)]
#[serde(try_from = "String")]
pub struct Seconds(pub f64);

/// A size in bytes, written `600`, `60KiB` or `2MB`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "SizeInput")]
pub struct Bytes(pub u64);

/// A rate in bits per second, written as `tc` does: `10Mbit`, `1Gbit`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Deserialize)]
#[serde(try_from = "String")]
pub struct BitRate(pub f64);

/// YAML value of a size: an integer without a unit, or text with a unit.
#[derive(Deserialize)]
#[serde(untagged)]
enum SizeInput {
    Number(u64),
    Text(String),
}

const TIMES: [(&str, f64); 3] = [("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
const SIZES: [(&str, f64); 8] = [
    ("KiB", 1024.0),
    ("MiB", 1_048_576.0),
    ("GiB", 1_073_741_824.0),
    ("kB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
    ("B", 1.0),
    ("", 1.0),
];
const RATES: [(&str, f64); 4] = [("bit", 1.0), ("kbit", 1e3), ("Mbit", 1e6), ("Gbit", 1e9)];

/// Upper bound of every value: larger ones (in seconds, bytes or bits per second) are typing errors.
const MAX_VALUE: f64 = 1e15;

/// Parses a number followed by one of the units. `None` for other text, and for a value outside 0 to [`MAX_VALUE`].
fn parse_scaled(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let (_, factor) = units.iter().find(|(unit, _)| *unit == &text[digits.len()..])?;
    let number: f64 = digits.parse().ok()?;
    let value = number * factor;
    (value.is_finite() && (0.0..=MAX_VALUE).contains(&value)).then_some(value)
}

/// Writes the value with up to three digits, in the largest unit in which it is at least one.
fn format_scaled(f: &mut fmt::Formatter<'_>, value: f64, units: &[(&str, f64)]) -> fmt::Result {
    let (unit, factor) = units
        .iter()
        .rev()
        .find(|(_, factor)| value >= *factor)
        .or(units.first())
        .copied()
        .unwrap_or(("", 1.0));
    let number = value / factor;
    let decimals = if number >= 99.95 { 0 } else { usize::from(number >= 9.995) ^ 1 };
    let text = format!("{number:.decimals$}");
    let text =
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    write!(f, "{text}{unit}")
}

macro_rules! impl_quantity {
    ($($type:ident: $units:ident, $pattern:literal, $expectation:literal;)*) => {$(
        impl FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                parse_scaled(text, &$units).map(Self::of).ok_or_else(|| format!("{text:?} {}", $expectation))
            }
        }

        impl TryFrom<String> for $type {
            type Error = String;

            fn try_from(text: String) -> Result<Self, String> {
                text.parse()
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": ["string", "integer"], "pattern": $pattern })
            }
        }
    )*};
}

impl_quantity! {
    Seconds: TIMES, r"^[0-9.]+(us|ms|s)$", "is not a duration: write 200us, 12ms or 1.5s";
    Bytes: SIZES, r"^[0-9.]+([kKMG]i?)?B?$", "is not a size: write 600, 60KiB or 2MB";
    BitRate: RATES, r"^[0-9.]+[kMG]?bit$", "is not a rate: write 10Mbit or 1Gbit";
}

// === impl Seconds ===

impl Seconds {
    fn of(value: f64) -> Self {
        Self(value)
    }
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        format_scaled(f, self.0, &TIMES)
    }
}

// === impl Bytes ===

impl Bytes {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "`parse_scaled` bounds it"
    )]
    fn of(value: f64) -> Self {
        Self(value.round() as u64)
    }
}

impl TryFrom<SizeInput> for Bytes {
    type Error = String;

    fn try_from(input: SizeInput) -> Result<Self, String> {
        match input {
            SizeInput::Number(bytes) => bytes.to_string().parse(),
            SizeInput::Text(text) => text.parse(),
        }
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        #[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
        format_scaled(f, self.0 as f64, &[("B", 1.0), ("KiB", 1024.0), ("MiB", 1_048_576.0)])
    }
}

// === impl BitRate ===

impl BitRate {
    fn of(value: f64) -> Self {
        Self(value)
    }

    /// Time in seconds to send `bytes` bytes.
    #[expect(clippy::cast_precision_loss, reason = "an item is far below 2^52 bytes")]
    pub fn time_of(self, bytes: u64) -> f64 {
        bytes as f64 * 8.0 / self.0
    }
}

impl fmt::Display for BitRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        format_scaled(f, self.0, &RATES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_parsed_and_formatted() {
        for (text, seconds, formatted) in
            [("12ms", 0.012, "12ms"), ("0.2ms", 0.0002, "200us"), ("1.50s", 1.5, "1.5s")]
        {
            let duration: Seconds = text.parse().expect("a time");
            assert!(
                (duration.0 - seconds).abs() < 1e-12 && duration.to_string() == formatted,
                "{text} {duration}"
            );
        }
        for (text, bytes, formatted) in
            [("600", 600, "600B"), ("60KiB", 61440, "60KiB"), ("2MB", 2_000_000, "1.9MiB")]
        {
            let size: Bytes = text.parse().expect("a size");
            assert_eq!((size.0, size.to_string().as_str()), (bytes, formatted));
        }
        let rate: BitRate = "100Mbit".parse().expect("a rate");
        assert_eq!(rate.to_string(), "100Mbit");
        assert!((rate.time_of(1_250_000) - 0.1).abs() < 1e-12);
        for text in ["", "ms", "-1ms", "1 ms", "12", "1e400s", "NaNs", "infs", "1h"] {
            assert!(text.parse::<Seconds>().is_err(), "{text}");
        }
        assert!("60Ki".parse::<Bytes>().is_err() && "10M".parse::<BitRate>().is_err());
    }
}
