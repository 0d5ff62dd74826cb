//! Parsers of device selectors, and of names, addresses and amounts.

use std::{fmt::Display, str::FromStr};

use jiff::Timestamp;
use windlass_core::{
    attribute::{AttributeName, AttributeValue},
    device::{Device, DeviceId, DeviceKind, SourceName},
    pci::PciAddress,
    replica::ReplicaId,
    resource::ResourceName,
    selector::{Amount, DeviceExpression, PublishedDevice, PublishedExpression},
};

use crate::{
    Verdict::{self, Accepted, Refused},
    assert_explained, refused,
};

/// Parses the input as each kind of expression, name, address and amount. Accepts it if any parser accepts it.
pub(crate) fn selector(bytes: &[u8]) -> Verdict {
    let Ok(text) = std::str::from_utf8(bytes) else { return Refused };
    let amount = Amount::parse(text);
    if let Some(amount) = &amount {
        let _ = amount.ceil();
    }
    let verdicts = [
        device_expression(text),
        published_expression(text),
        round_trip::<DeviceId>(text),
        round_trip::<PciAddress>(text),
        round_trip::<ReplicaId>(text),
        round_trip::<ResourceName>(text),
        round_trip::<SourceName>(text),
    ];
    if amount.is_some() || verdicts.contains(&Accepted) { Accepted } else { Refused }
}

/// Parses an expression, and evaluates it for a device of the node.
fn device_expression(text: &str) -> Verdict {
    match text.parse::<DeviceExpression>() {
        Ok(expression) => {
            assert_eq!(expression.as_str(), text);
            if let Err(error) = expression.matches(&device()) {
                assert_explained(&error.to_string());
            }
            Accepted
        }
        Err(error) => refused(&error.to_string()),
    }
}

/// Parses an expression, and evaluates it for a device of a `ResourceSlice`.
fn published_expression(text: &str) -> Verdict {
    match text.parse::<PublishedExpression>() {
        Ok(expression) => {
            let name = AttributeName::new("windlass.dev", "type");
            let device = PublishedDevice {
                id: "windlass.dev/n1/gpu-0".to_owned(),
                driver: "windlass.dev".to_owned(),
                attributes: [(name, AttributeValue::String("gpu".to_owned()))].into(),
                ..PublishedDevice::default()
            };
            if let Err(error) = expression.matches(&device) {
                assert_explained(&error.to_string());
            }
            Accepted
        }
        Err(error) => refused(&error.to_string()),
    }
}

/// Device with an attribute of every type.
fn device() -> Device {
    let id = "GPU-0".parse().expect("an id");
    let mut device = Device::new(id, DeviceKind::Gpu, SourceName::NVIDIA, Timestamp::UNIX_EPOCH);
    for (name, value) in [
        ("productName", AttributeValue::String("NVIDIA A100".to_owned())),
        ("cudaComputeCapability", AttributeValue::Version("8.0.0".to_owned())),
        ("multiprocessors", AttributeValue::Int(108)),
        ("displayed", AttributeValue::Bool(false)),
    ] {
        device.attributes.insert(AttributeName::new("nvidia.com", name), value);
    }
    device
}

/// Parses a value. An accepted value must survive a round trip.
fn round_trip<T: FromStr<Err: Display> + Display + PartialEq>(text: &str) -> Verdict {
    match text.parse::<T>() {
        Ok(value) => {
            let written = value.to_string();
            assert!(written.parse::<T>().is_ok_and(|again| again == value), "{text:?} {written:?}");
            Accepted
        }
        Err(error) => refused(&error.to_string()),
    }
}
