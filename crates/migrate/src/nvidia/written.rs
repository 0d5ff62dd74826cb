//! Values in the plugin's notation: Go durations, and resource names without a domain.

use std::fmt;

use jiff::SignedDuration;
use serde::{
    Deserialize, Deserializer,
    de::{Error, Visitor},
};
use windlass_core::resource::ResourceName;

/// A duration in Go's notation, a number of nanoseconds, or `infinite`. It is only validated: no duration has an
/// effect.
#[derive(Debug)]
pub(super) struct GoDuration;

/// A resource name. Its default domain is `nvidia.com`.
#[derive(Clone, Debug)]
pub(super) struct NvidiaResourceName(pub(super) ResourceName);

// === impl GoDuration ===

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DurationVisitor)
    }
}

struct DurationVisitor;

impl Visitor<'_> for DurationVisitor {
    type Value = GoDuration;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration such as 60s, a number of nanoseconds, or infinite")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<GoDuration, E> {
        let is_valid = text == "infinite" || text.parse::<SignedDuration>().is_ok();
        let error =
            || E::custom(format!("{text:?} is not a duration: write 60s, 1m30s or infinite"));
        is_valid.then_some(GoDuration).ok_or_else(error)
    }

    fn visit_u64<E>(self, _: u64) -> Result<GoDuration, E> {
        Ok(GoDuration)
    }

    fn visit_i64<E>(self, _: i64) -> Result<GoDuration, E> {
        Ok(GoDuration)
    }

    fn visit_f64<E>(self, _: f64) -> Result<GoDuration, E> {
        Ok(GoDuration)
    }
}

// === impl NvidiaResourceName ===

impl<'de> Deserialize<'de> for NvidiaResourceName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let name = if text.contains('/') { text } else { format!("nvidia.com/{text}") };
        // The plugin's own limit, below the kubelet's.
        if name.len() > MAX_CHARS {
            let problem = format!("resource name {name:?} has more than {MAX_CHARS} characters");
            return Err(D::Error::custom(problem));
        }
        name.parse().map(Self).map_err(D::Error::custom)
    }
}

const MAX_CHARS: usize = 63;
