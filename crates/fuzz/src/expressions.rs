//! Expression readers: device selectors, and short texts for names, addresses and amounts.

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
    has_words, refused,
};

/// Reads an expression against a device of the node and a published device, then as each short text.
/// Accepts the input if any reader accepts.
pub(crate) fn selector(bytes: &[u8]) -> Verdict {
    let Ok(text) = std::str::from_utf8(bytes) else { return Refused };
    let amount = Amount::parse(text);
    if let Some(amount) = &amount {
        let _ = amount.rounded_up();
    }
    let verdicts = [
        expression(text),
        published(text),
        reads_back::<DeviceId>(text),
        reads_back::<PciAddress>(text),
        reads_back::<ReplicaId>(text),
        reads_back::<ResourceName>(text),
        reads_back::<SourceName>(text),
    ];
    if amount.is_some() || verdicts.contains(&Accepted) { Accepted } else { Refused }
}

fn expression(text: &str) -> Verdict {
    match text.parse::<DeviceExpression>() {
        Ok(expression) => {
            assert_eq!(expression.as_str(), text);
            if let Err(why) = expression.matches(&device()) {
                has_words(&why.to_string());
            }
            Accepted
        }
        Err(why) => refused(&why.to_string()),
    }
}

fn published(text: &str) -> Verdict {
    match text.parse::<PublishedExpression>() {
        Ok(expression) => {
            let name = AttributeName::new("windlass.dev", "type");
            let device = PublishedDevice {
                id: "windlass.dev/n1/gpu-0".to_owned(),
                driver: "windlass.dev".to_owned(),
                attributes: [(name, AttributeValue::String("gpu".to_owned()))].into(),
                ..PublishedDevice::default()
            };
            if let Err(why) = expression.matches(&device) {
                has_words(&why.to_string());
            }
            Accepted
        }
        Err(why) => refused(&why.to_string()),
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

fn reads_back<T: FromStr<Err: Display> + Display + PartialEq>(text: &str) -> Verdict {
    match text.parse::<T>() {
        Ok(value) => {
            let written = value.to_string();
            assert!(written.parse::<T>().is_ok_and(|again| again == value), "{text:?} {written:?}");
            Accepted
        }
        Err(why) => refused(&why.to_string()),
    }
}
