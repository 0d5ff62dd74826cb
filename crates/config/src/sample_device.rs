//! Sample device with every attribute that devices of a source may have, for the lint of expressions.

use std::str::FromStr as _;

use jiff::Timestamp;
use windlass_core::{
    attribute::{AttributeName, AttributeValue, Attributes, standard},
    device::{AttributeGroup, AttributeType, Device, DeviceId, DeviceKind, SourceName},
};

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
        let standard_attributes = [
            (standard::PCI_BUS_ID, placeholder_text()),
            (standard::PCIE_ROOT, placeholder_text()),
            (standard::NUMA_NODE, AttributeValue::Int(0)),
        ];
        let attributes = standard_attributes.into_iter().chain(attributes).collect();
        Self { device: Device { attributes, ..device }, varying: Vec::new(), others }
    }

    /// A device of a built-in source; `None` if the source declares no attributes.
    pub(super) fn built_in(source: &SourceName) -> Option<Self> {
        let groups: Vec<_> = source.family().attributes.iter().copied().flatten().collect();
        if groups.is_empty() {
            return None;
        }
        let (mut varying, mut attributes) = (Vec::new(), Attributes::new());
        for AttributeGroup { domain, names, value_type } in groups {
            for name in names.iter().copied() {
                match value_type {
                    AttributeType::VersionOrText => varying.push((*domain, name)),
                    value_type => {
                        drop(
                            attributes
                                .insert(AttributeName::new(domain, name), placeholder(*value_type)),
                        );
                    }
                }
            }
        }
        Some(Self { varying, ..Self::new(source.clone(), attributes, OtherAttributes::Few) })
    }
}

/// Placeholder for any value of a type.
fn placeholder(value_type: AttributeType) -> AttributeValue {
    match value_type {
        AttributeType::Text | AttributeType::VersionOrText => placeholder_text(),
        AttributeType::Int => AttributeValue::Int(0),
        AttributeType::Bool => AttributeValue::Bool(false),
        AttributeType::Version => AttributeValue::version("1.0"),
    }
}
