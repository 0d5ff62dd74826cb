//! Quantities in Kubernetes' notation, for `quantity("40Gi")` in expressions.

use cel::{ExecutionError, common::types::CelInt};

use crate::attribute::Quantity;

/// Nano units per unit. Kubernetes has the same resolution.
const NANOS_PER_UNIT: i128 = 1_000_000_000;

/// Suffixes in nano units.
const SUFFIXES: &[(&str, i128)] = &[
    ("n", 1),
    ("u", 1_000),
    ("m", 1_000_000),
    ("k", 1_000 * NANOS_PER_UNIT),
    ("M", 1_000_000 * NANOS_PER_UNIT),
    ("G", 1_000_000_000 * NANOS_PER_UNIT),
    ("T", 1_000_000_000_000 * NANOS_PER_UNIT),
    ("P", 1_000_000_000_000_000 * NANOS_PER_UNIT),
    ("E", 1_000_000_000_000_000_000 * NANOS_PER_UNIT),
    ("Ki", NANOS_PER_UNIT << 10),
    ("Mi", NANOS_PER_UNIT << 20),
    ("Gi", NANOS_PER_UNIT << 30),
    ("Ti", NANOS_PER_UNIT << 40),
    ("Pi", NANOS_PER_UNIT << 50),
    ("Ei", NANOS_PER_UNIT << 60),
];

/// A quantity in nano units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Amount(i128);

value_of_expressions!(Amount, "kubernetes.Quantity");

// === impl Amount ===

impl Amount {
    /// Zero.
    pub const ZERO: Self = Self(0);

    /// The value in nano units. Different texts may have equal values.
    pub fn nano_units(self) -> i128 {
        self.0
    }

    /// Parses Kubernetes' notation. Rounds finer fractions away from zero, as Kubernetes does.
    pub fn parse(text: &str) -> Option<Self> {
        let (negative, unsigned) = match text.as_bytes().first()? {
            b'-' => (true, &text[1..]),
            b'+' => (false, &text[1..]),
            _ => (false, text),
        };
        let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.');
        let (digits, suffix) = unsigned.split_at(end.unwrap_or(unsigned.len()));
        let nano_units = scaled(digits, unit(suffix)?)?;
        Some(Self(if negative { -nano_units } else { nano_units }))
    }

    /// The integer value, if it is one.
    pub(super) fn as_integer(self) -> Option<i64> {
        (self.0 % NANOS_PER_UNIT == 0)
            .then(|| i64::try_from(self.0 / NANOS_PER_UNIT).ok())
            .flatten()
    }

    /// Rounded up to an integer, like `Quantity.Value()` in Kubernetes.
    pub fn ceil(self) -> i64 {
        let units =
            self.0.div_euclid(NANOS_PER_UNIT) + i128::from(self.0.rem_euclid(NANOS_PER_UNIT) != 0);
        i64::try_from(units).unwrap_or(if units < 0 { i64::MIN } else { i64::MAX })
    }

    /// The sum.
    #[must_use]
    pub fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// The difference; may be negative.
    #[must_use]
    pub fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    pub(super) fn sign(self) -> CelInt {
        CelInt::from(i64::try_from(self.0.signum()).expect("-1, 0 or 1"))
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "the function's name says that it is approximate"
    )]
    pub(super) fn to_f64(self) -> f64 {
        self.0 as f64 / NANOS_PER_UNIT as f64
    }

    pub(super) fn plus(self, other: Self) -> Result<Self, ExecutionError> {
        let sum = self.0.checked_add(other.0).map(Self);
        sum.ok_or_else(|| ExecutionError::function_error("add", "the sum is too large"))
    }

    pub(super) fn minus(self, other: Self) -> Result<Self, ExecutionError> {
        let difference = self.0.checked_sub(other.0).map(Self);
        difference.ok_or_else(|| ExecutionError::function_error("sub", "the result is too large"))
    }
}

impl From<Quantity> for Amount {
    fn from(quantity: Quantity) -> Self {
        let (Quantity::Bytes(number) | Quantity::Count(number)) = quantity;
        Self(i128::from(number) * NANOS_PER_UNIT)
    }
}

impl From<i64> for Amount {
    fn from(number: i64) -> Self {
        Self(i128::from(number) * NANOS_PER_UNIT)
    }
}

impl From<&CelInt> for Amount {
    fn from(number: &CelInt) -> Self {
        Self(i128::from(*number.inner()) * NANOS_PER_UNIT)
    }
}

/// Nano units of a suffix or decimal exponent.
fn unit(suffix: &str) -> Option<i128> {
    if suffix.is_empty() {
        return Some(NANOS_PER_UNIT);
    }
    if let Some((_, nanos)) = SUFFIXES.iter().find(|(other, _)| *other == suffix) {
        return Some(*nanos);
    }
    let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    10_i128.checked_pow(u32::try_from(exponent.checked_add(9)?).ok()?)
}

/// A decimal number times a unit, rounded up: all digits as one integer times the unit, divided by the power of ten
/// of the fraction.
fn scaled(digits: &str, unit: i128) -> Option<i128> {
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let mantissa: i128 = format!("{whole}{fraction}").parse().ok()?;
    let divisor = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let product = mantissa.checked_mul(unit)?;
    Some(product / divisor + i128::from(product % divisor != 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_parse_as_in_kubernetes() {
        for (text, nano_units) in [
            ("0", 0),
            ("40Gi", (40 << 30) * NANOS_PER_UNIT),
            ("1.5Ki", 1_536 * NANOS_PER_UNIT),
            ("-2k", -2_000 * NANOS_PER_UNIT),
            ("+.5", NANOS_PER_UNIT / 2),
            ("1.", NANOS_PER_UNIT),
            ("100m", NANOS_PER_UNIT / 10),
            ("1e3", 1_000 * NANOS_PER_UNIT),
            ("1E-3", NANOS_PER_UNIT / 1_000),
            ("0.0000000001", 1),
            ("16Ei", (16 << 60) * NANOS_PER_UNIT),
        ] {
            assert_eq!(Amount::parse(text).map(Amount::nano_units), Some(nano_units), "{text}");
        }
        let long = "9".repeat(40);
        for bad in ["", "-", ".", "Gi", "1GB", "1 Gi", "1.2.3", "--1", "1e", "1e99", &long] {
            assert_eq!(Amount::parse(bad), None, "{bad:?}");
        }
    }
}
