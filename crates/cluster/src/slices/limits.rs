//! Limits of the API server for devices and pools, checked before a publication: the API server refuses a whole
//! slice for one invalid device.
//!
//! The limits are those of Kubernetes' `resource.k8s.io/v1` (`pkg/apis/resource/validation`).

use k8s_openapi::api::resource::v1::{Device, DeviceAttribute, DeviceTaint};
use windlass_config::DriverName;
use windlass_core::{
    attribute::MAX_VALUE_CHARS,
    name::{MAX_LABEL, is_label, is_label_name, is_subdomain},
    selector::{Amount, is_semver},
};

/// A violated limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidField {
    /// Pool names consist of DNS names, separated by `/`.
    #[error(
        "{0:?} cannot name a pool: it has DNS names separated by /, at most {MAX_POOL_NAME} characters"
    )]
    PoolName(String),
    /// Device names are DNS labels.
    #[error("{0:?} cannot name a device: it is not a DNS label of at most {MAX_LABEL} characters")]
    DeviceName(String),
    /// Device names are unique in a pool.
    #[error("another device of the pool has this name")]
    Duplicate,
    /// Attributes and capacities are named by a domain and an identifier.
    #[error("{0:?} cannot name an attribute or a capacity")]
    AttributeName(String),
    /// The number of attributes and capacities is limited.
    #[error("{0} attributes and capacities are more than {MAX_ATTRIBUTES}")]
    TooManyAttributes(usize),
    /// Values are short, and versions are semantic versions.
    #[error("attribute {0} has a value that is too long, no version, or not one value")]
    Value(String),
    /// Capacities are amounts.
    #[error("capacity {0} is not an amount")]
    Quantity(String),
    /// Taints have the syntax of labels, and their number is limited.
    #[error("taint {0:?} is not written as a label is, or there are more than {MAX_TAINTS}")]
    Taint(String),
}

const MAX_POOL_NAME: usize = 253;
const MAX_IDENTIFIER: usize = 32;
const MAX_ATTRIBUTES: usize = 32;
const MAX_TAINTS: usize = 16;

/// Checks the name of a pool.
pub fn check_pool(name: &str) -> Result<(), InvalidField> {
    let is_valid = name.len() <= MAX_POOL_NAME && name.split('/').all(is_subdomain);
    ensure(is_valid, || InvalidField::PoolName(name.to_owned()))
}

/// Checks a device.
pub fn check_device(device: &Device) -> Result<(), InvalidField> {
    ensure(is_label(&device.name), || InvalidField::DeviceName(device.name.clone()))?;
    let attributes = || device.attributes.iter().flatten();
    let capacity = || device.capacity.iter().flatten();
    let attribute_count = attributes().count() + capacity().count();
    ensure(attribute_count <= MAX_ATTRIBUTES, || InvalidField::TooManyAttributes(attribute_count))?;
    for name in attributes().map(|(name, _)| name).chain(capacity().map(|(name, _)| name)) {
        ensure(is_qualified_name(name), || InvalidField::AttributeName(name.clone()))?;
    }
    for (name, value) in attributes() {
        ensure(is_one_value(value), || InvalidField::Value(name.clone()))?;
    }
    for (name, capacity) in capacity() {
        let is_amount = Amount::parse(&capacity.value.0).is_some();
        ensure(is_amount, || InvalidField::Quantity(name.clone()))?;
    }
    let taints = device.taints.as_deref().unwrap_or_default();
    for (nth, taint) in taints.iter().enumerate() {
        ensure(nth < MAX_TAINTS && is_taint(taint), || InvalidField::Taint(taint.key.clone()))?;
    }
    Ok(())
}

fn ensure(is_valid: bool, error: impl FnOnce() -> InvalidField) -> Result<(), InvalidField> {
    if is_valid { Ok(()) } else { Err(error()) }
}

/// `domain/identifier`, or the identifier alone.
pub fn is_qualified_name(name: &str) -> bool {
    let (domain, identifier) = name.rsplit_once('/').unwrap_or((DEFAULT_DOMAIN, name));
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let is_domain = domain.len() <= DriverName::MAX_CHARS && is_subdomain(domain);
    is_domain
        && (1..=MAX_IDENTIFIER).contains(&identifier.len())
        && !identifier.starts_with(|first: char| first.is_ascii_digit())
        && identifier.bytes().all(is_letter)
}

/// Domain of a name without one.
const DEFAULT_DOMAIN: &str = "driver";

fn is_one_value(attribute: &DeviceAttribute) -> bool {
    let DeviceAttribute { bool, int, string, version, bools, ints, strings, versions } = attribute;
    let values = [
        bool.is_some(),
        int.is_some(),
        string.is_some(),
        version.is_some(),
        bools.is_some(),
        ints.is_some(),
        strings.is_some(),
        versions.is_some(),
    ];
    let texts = string.iter().chain(version).chain(strings.iter().chain(versions).flatten());
    // Kubernetes limits the number of bytes.
    let mut lengths = texts.map(String::len);
    let mut all_versions = version.iter().chain(versions.iter().flatten());
    values.iter().filter(|is_some| **is_some).count() == 1
        && lengths.all(|length| length <= MAX_VALUE_CHARS)
        && all_versions.all(|version| is_semver(version))
}

fn is_taint(taint: &DeviceTaint) -> bool {
    let is_key = match taint.key.rsplit_once('/') {
        Some((prefix, name)) => is_subdomain(prefix) && is_label_name(name),
        None => is_label_name(&taint.key),
    };
    is_key && taint.value.as_deref().is_none_or(|value| value.is_empty() || is_label_name(value))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn refusal(device: Value) -> Option<String> {
        let device: Device = serde_json::from_value(device).expect("a device");
        check_device(&device).err().map(|error| error.to_string())
    }

    #[test]
    fn a_device_within_all_limits_is_accepted() {
        let device = json!({
            "name": "gpu-0",
            "attributes": {
                "windlass.dev/type": {"string": "gpu"}, "a": {"int": 1}, "_b1": {"bool": false},
                "d/v": {"version": "1.2.3-rc.1+build.05"}, "d/l": {"strings": ["x", "y"]},
            },
            "capacity": {"gpu.nvidia.com/memory": {"value": "80Gi"}},
            "taints": [{"key": "windlass.dev/unhealthy", "value": "XID-79", "effect": "NoSchedule"}],
        });
        assert_eq!(refusal(device), None);
    }

    #[test]
    fn a_violated_limit_is_named_with_its_field() {
        let long = "x".repeat(65);
        let many: serde_json::Map<_, _> =
            (0..33).map(|index| (format!("a{index}"), json!({"int": 1}))).collect();
        let taints: Vec<_> =
            (0..17).map(|index| json!({"key": format!("k{index}"), "effect": "None"})).collect();
        for (device, expected) in [
            (json!({"name": "GPU-0"}), "cannot name a device"),
            (json!({"name": "x".repeat(64)}), "cannot name a device"),
            (json!({"name": "a", "attributes": many}), "33 attributes"),
            (json!({"name": "a", "attributes": {"a-b": {"int": 1}}}), "\"a-b\" cannot name"),
            (json!({"name": "a", "attributes": {"A.com/b": {"int": 1}}}), "cannot name"),
            (json!({"name": "a", "attributes": {"b": {"string": long}}}), "attribute b"),
            (json!({"name": "a", "attributes": {"b": {"string": "ä".repeat(40)}}}), "attribute b"),
            (json!({"name": "a", "attributes": {"b": {"version": "1.02.3"}}}), "attribute b"),
            (json!({"name": "a", "attributes": {"b": {"version": "1.2"}}}), "attribute b"),
            (json!({"name": "a", "attributes": {"b": {"int": 1, "bool": true}}}), "attribute b"),
            (json!({"name": "a", "attributes": {"b": {}}}), "attribute b"),
            (json!({"name": "a", "capacity": {"m": {"value": "80GB"}}}), "capacity m"),
            (json!({"name": "a", "taints": [{"key": "a b", "effect": "None"}]}), "taint \"a b\""),
            (json!({"name": "a", "taints": taints}), "taint \"k16\""),
        ] {
            let message = refusal(device.clone()).unwrap_or_default();
            assert!(message.contains(expected), "{device}: {message:?}");
        }
    }

    #[test]
    fn a_pool_name_is_a_path_of_dns_names() {
        for name in ["n1", "n1/nvidia", "ip-10-0-0-1.eu.internal/coral-usb"] {
            assert_eq!(check_pool(name), Ok(()));
        }
        for name in ["", "n1/", "N1/x", "n1//x", &"x".repeat(254)] {
            assert!(check_pool(name).is_err(), "{name:?}");
        }
    }
}
