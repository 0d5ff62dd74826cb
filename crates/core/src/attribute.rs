//! Typed device attributes, in the shape and with the names of `resource.k8s.io/v1`.

use std::{borrow::Cow, collections::BTreeMap, fmt};

use serde::{Serialize, Serializer};

/// Attributes of one device by qualified name, such as `nvidia.com/productName`.
pub type Attributes = BTreeMap<AttributeName, AttributeValue>;

/// Capacities of one device by qualified name, such as `nvidia.com/memory`.
pub type Capacities = BTreeMap<AttributeName, Quantity>;

/// A qualified attribute name: the domain that defines it and a C identifier.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttributeName {
    domain: Cow<'static, str>,
    name: Cow<'static, str>,
}

/// One of the four attribute types of DRA.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AttributeValue {
    /// Text of at most 64 characters.
    String(String),
    /// A signed integer.
    Int(i64),
    /// A boolean.
    Bool(bool),
    /// A semantic version 2.0.0, such as `9.0.0`.
    Version(String),
}

/// Amount in Kubernetes' notation: `81559Mi` for bytes, `7` for a count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Quantity {
    /// Bytes of memory.
    Bytes(u64),
    /// A plain count.
    Count(u64),
}

/// Attributes that Kubernetes itself defines (KEP-4381 and KEP-6072), so that a claim can match devices
/// across drivers.
pub mod standard {
    use super::AttributeName;

    const DOMAIN: &str = "resource.kubernetes.io";

    /// PCI address, `0000:1b:00.0`.
    pub const PCI_BUS_ID: AttributeName = AttributeName::new(DOMAIN, "pciBusID");
    /// The host bridge above a device, `pci0000:15`.
    pub const PCIE_ROOT: AttributeName = AttributeName::new(DOMAIN, "pcieRoot");
    /// The NUMA node nearest to a device; absent if firmware reports none.
    pub const NUMA_NODE: AttributeName = AttributeName::new(DOMAIN, "numaNode");
}

/// Address of the upstream port of the PCIe switch above a device, `0000:16:00.0`. Devices below one switch have the
/// level `PIX`.
pub const PCIE_SWITCH: AttributeName = AttributeName::new("windlass.dev", "pcieSwitch");
/// The island of a GPU: the address of its first GPU. NVLink or xGMI connects the GPUs of an island.
pub const ISLAND: AttributeName = AttributeName::new("windlass.dev", "island");

/// Longest attribute identifier that DRA accepts, in characters.
const MAX_NAME_CHARS: usize = 32;

/// Longest string or version value that DRA accepts, in characters.
pub const MAX_VALUE_CHARS: usize = 64;

serialize_as_text!(AttributeName);

// === impl AttributeName ===

impl AttributeName {
    /// An attribute with a constant domain and identifier.
    pub const fn new(domain: &'static str, name: &'static str) -> Self {
        Self { domain: Cow::Borrowed(domain), name: Cow::Borrowed(name) }
    }

    /// An attribute whose identifier comes from a configuration or a device; `None` if DRA would refuse it.
    pub fn try_new(domain: &'static str, name: &str) -> Option<Self> {
        let is_first = |first: char| first.is_ascii_alphabetic() || first == '_';
        let is_letter = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let is_valid = (1..=MAX_NAME_CHARS).contains(&name.len())
            && name.starts_with(is_first)
            && name.chars().all(is_letter);
        let owned = || Cow::Owned(name.to_owned());
        is_valid.then(|| Self { domain: Cow::Borrowed(domain), name: owned() })
    }

    /// An attribute name from a ResourceSlice. A name without a domain has the driver's.
    pub fn from_slice_name(driver: &str, name: &str) -> Self {
        let (domain, name) = name.split_once('/').unwrap_or((driver, name));
        Self { domain: Cow::Owned(domain.to_owned()), name: Cow::Owned(name.to_owned()) }
    }

    /// The same identifier under another domain.
    #[must_use]
    pub fn in_domain(&self, domain: &'static str) -> Self {
        Self { domain: Cow::Borrowed(domain), name: self.name.clone() }
    }

    /// The defining domain, `nvidia.com`.
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// The identifier inside the domain, `productName`.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for AttributeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.domain, self.name)
    }
}

// === impl AttributeValue ===

impl AttributeValue {
    /// A string value, cut to [`MAX_VALUE_CHARS`].
    pub fn string(text: impl Into<String>) -> Self {
        Self::String(text.into().chars().take(MAX_VALUE_CHARS).collect())
    }

    /// A version from one to three dotted numbers; other text stays a string.
    ///
    /// Semantic versions have exactly three parts and no leading zeros: NVIDIA's `580.95.05` becomes
    /// `580.95.5`.
    pub fn version(text: &str) -> Self {
        let parts: Option<Vec<u64>> = text.split('.').map(|part| part.parse().ok()).collect();
        match parts.as_deref() {
            Some([major]) => Self::Version(format!("{major}.0.0")),
            Some([major, minor]) => Self::Version(format!("{major}.{minor}.0")),
            Some([major, minor, patch]) => Self::Version(format!("{major}.{minor}.{patch}")),
            _ => Self::string(text),
        }
    }
}

impl fmt::Display for AttributeValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::String(text) | Self::Version(text) => f.write_str(text),
            Self::Int(number) => number.fmt(f),
            Self::Bool(truth) => truth.fmt(f),
        }
    }
}

// === impl Quantity ===

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, u64); 4] =
            [("Ti", 1 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)];
        match self {
            Self::Count(count) => count.fmt(f),
            Self::Bytes(bytes) => match UNITS.iter().find(|(_, unit)| exact(*bytes, *unit)) {
                Some((suffix, unit)) => write!(f, "{}{suffix}", bytes / unit),
                None => bytes.fmt(f),
            },
        }
    }
}

impl Serialize for Quantity {
    /// As in DRA: `{"value": "80Gi"}`.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        BTreeMap::from([("value", self.to_string())]).serialize(serializer)
    }
}

fn exact(bytes: u64, unit: u64) -> bool {
    bytes > 0 && bytes.is_multiple_of(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_use_the_largest_unit_that_is_exact() {
        for (quantity, expected) in [
            (Quantity::Bytes(80 << 30), "80Gi"),
            (Quantity::Bytes(81_559 << 20), "81559Mi"),
            (Quantity::Bytes(1 << 40), "1Ti"),
            (Quantity::Bytes(1_000), "1000"),
            (Quantity::Bytes(0), "0"),
            (Quantity::Count(1 << 30), "1073741824"),
        ] {
            assert_eq!(quantity.to_string(), expected);
        }
    }

    #[test]
    fn versions_become_semantic_or_stay_text() {
        for (text, expected) in [
            ("580.95.05", AttributeValue::Version("580.95.5".into())),
            ("9.0", AttributeValue::Version("9.0.0".into())),
            ("13", AttributeValue::Version("13.0.0".into())),
            ("r580-test", AttributeValue::String("r580-test".into())),
            ("1.2.3.4", AttributeValue::String("1.2.3.4".into())),
        ] {
            assert_eq!(AttributeValue::version(text), expected);
        }
    }

    #[test]
    fn documents_have_the_shape_of_a_resource_slice() {
        let attributes = Attributes::from([
            (standard::NUMA_NODE, AttributeValue::Int(1)),
            (AttributeName::new("nvidia.com", "productName"), AttributeValue::string("L4")),
        ]);
        assert_eq!(
            serde_json::to_string(&attributes).expect("plain"),
            r#"{"nvidia.com/productName":{"string":"L4"},"resource.kubernetes.io/numaNode":{"int":1}}"#
        );
        assert_eq!(
            serde_json::to_string(&Quantity::Bytes(1 << 30)).expect("plain"),
            r#"{"value":"1Gi"}"#
        );
    }
}
