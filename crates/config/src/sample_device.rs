//! Sample device with every attribute that devices of a source may have, for the lint of expressions.

use std::str::FromStr as _;

use jiff::Timestamp;
use windlass_core::{
    attribute::{AttributeName, AttributeValue, Attributes},
    device::{Device, DeviceId, DeviceKind, SourceName},
};

use crate::family_attributes::{self, Attribute, AttributeType};

/// Placeholder for any text.
pub(super) fn placeholder_text() -> AttributeValue {
    AttributeValue::string("0")
}

/// The attributes of devices that are not discovered yet.
pub(super) struct SampleDevice {
    /// A device with every attribute of a known type.
    pub(super) device: Device,
    /// Domains and names of attributes whose type varies by device.
    pub(super) varying: Vec<(&'static str, &'static str)>,
    /// Further attributes that devices may have.
    pub(super) others: OtherAttributes,
}

/// Attributes that devices may have besides the known ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OtherAttributes {
    /// None.
    None,
    /// Attributes of a driver or a later version. A name close to a known one is a typing error.
    Few,
    /// Any name that an operator writes into a file.
    Any,
}

// === impl SampleDevice ===

impl SampleDevice {
    /// A device of a source, with these attributes and Kubernetes' standard ones.
    pub(super) fn new(source: SourceName, attributes: Attributes, others: OtherAttributes) -> Self {
        let id = DeviceId::from_str("any-device").expect("letters and a dash");
        let device = Device::new(id, DeviceKind::Other, source, Timestamp::UNIX_EPOCH);
        let standard_attributes = family_attributes::STANDARD.iter().filter_map(sample_value);
        let attributes = standard_attributes.chain(attributes).collect();
        Self { device: Device { attributes, ..device }, varying: Vec::new(), others }
    }

    /// A device of a built-in source; `None` for another source.
    pub(super) fn built_in(source: &SourceName) -> Option<Self> {
        let attributes: Attributes =
            family_attributes::of(source).filter_map(sample_value).collect();
        if attributes.is_empty() {
            return None;
        }
        let varying = family_attributes::of(source)
            .filter(|attribute| attribute.value_type == AttributeType::VersionOrText)
            .map(|attribute| (attribute.domain, attribute.name));
        let varying = varying.collect();
        Some(Self { varying, ..Self::new(source.clone(), attributes, OtherAttributes::Few) })
    }
}

/// An attribute with a placeholder; `None` for a varying type and for capacities.
fn sample_value(attribute: &Attribute) -> Option<(AttributeName, AttributeValue)> {
    let value = match attribute.value_type {
        AttributeType::Text => placeholder_text(),
        AttributeType::Int => AttributeValue::Int(0),
        AttributeType::Bool => AttributeValue::Bool(false),
        AttributeType::Version => AttributeValue::version("1.0"),
        AttributeType::VersionOrText | AttributeType::Amount => return None,
    };
    Some((AttributeName::new(attribute.domain, attribute.name), value))
}
