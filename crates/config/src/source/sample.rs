//! Attributes that devices of a configured source may have.

use windlass_core::attribute::{AttributeName, AttributeValue, Attributes};

use super::{DOMAIN, DiscoveryRule, SourceRule};
use crate::sample_device::{OtherAttributes, SampleDevice, placeholder_text};

/// Attributes that devices of a bus or a class, and device nodes, may have.
const DEVICE_ATTRIBUTES: &[&str] = &[
    "name",
    "subsystem",
    "driver",
    "devName",
    "path",
    "pciVendor",
    "pciDevice",
    "pciSubsystemVendor",
    "pciSubsystemDevice",
    "pciClass",
    "pcieSwitch",
    "acpiIndex",
    "pfPciAddress",
    "usbVendor",
    "usbProduct",
    "usbSerial",
    "usbPort",
    "usbInterfaceClass",
    "usbManufacturer",
    "usbProductName",
    "ofCompatible",
    "iommuGroup",
];

/// Attributes of every device file. The file's content adds attributes of any name and type.
const FILE_ATTRIBUTES: [&str; 2] = ["name", "path"];

/// Attributes of boards on the network.
const ENDPOINT_ATTRIBUTES: [&str; 4] = ["name", "endpoint", "host", "port"];

// === impl SourceRule ===

impl SourceRule {
    /// A device with every attribute that a device of the source may have.
    pub(crate) fn sample(&self) -> SampleDevice {
        let (names, others) = match &self.find {
            DiscoveryRule::Bus(_) | DiscoveryRule::Class(_) | DiscoveryRule::Nodes(_) => {
                (DEVICE_ATTRIBUTES, OtherAttributes::None)
            }
            DiscoveryRule::Files(_) => (&FILE_ATTRIBUTES[..], OtherAttributes::Any),
            DiscoveryRule::Endpoints(_) => (&ENDPOINT_ATTRIBUTES[..], OtherAttributes::None),
        };
        let texts = names.iter().map(|name| (AttributeName::new(DOMAIN, name), placeholder_text()));
        let mut attributes: Attributes = texts.collect();
        if names == DEVICE_ATTRIBUTES {
            attributes.extend([
                (AttributeName::new(DOMAIN, "isSriovVf"), AttributeValue::Bool(false)),
                (AttributeName::new(DOMAIN, "sriovVfs"), AttributeValue::Int(0)),
            ]);
        }
        attributes.extend(self.attributes.keys().map(|name| (name.clone(), placeholder_text())));
        attributes.extend(self.facts.clone());
        SampleDevice::new(self.name.clone(), attributes, others)
    }
}
