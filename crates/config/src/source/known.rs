//! What a described source may know of its devices.

use windlass_core::attribute::{AttributeName, AttributeValue, Attributes};

use super::{Find, SourceRule};
use crate::specimen::{Others, Specimen, any};

/// What is known of some devices of a bus or a class, and of some nodes.
const OF_DEVICES: [&str; 21] = [
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

/// What is known of every file; whatever else it says may be of any sort.
const OF_FILES: [&str; 2] = ["name", "path"];

/// What is known of boards on the network.
const OF_ENDPOINTS: [&str; 4] = ["name", "endpoint", "host", "port"];

const DOMAIN: &str = "windlass.dev";

// === impl SourceRule ===

impl SourceRule {
    /// A device of the source that has everything that one of them may have.
    pub(crate) fn specimen(&self) -> Specimen {
        let (known, others) = match &self.find {
            Find::Bus(_) | Find::Class(_) | Find::Nodes(_) => (&OF_DEVICES[..], Others::None),
            Find::Files(_) => (&OF_FILES[..], Others::Any),
            Find::Endpoints(_) => (&OF_ENDPOINTS[..], Others::None),
        };
        let texts = known.iter().map(|name| (AttributeName::new(DOMAIN, name), any()));
        let mut attributes: Attributes = texts.collect();
        if known == OF_DEVICES {
            attributes.extend([
                (AttributeName::new(DOMAIN, "isSriovVf"), AttributeValue::Bool(false)),
                (AttributeName::new(DOMAIN, "sriovVfs"), AttributeValue::Int(0)),
            ]);
        }
        attributes.extend(self.attributes.keys().map(|name| (name.clone(), any())));
        attributes.extend(self.facts.clone());
        Specimen::new(self.name.clone(), attributes, others)
    }
}
