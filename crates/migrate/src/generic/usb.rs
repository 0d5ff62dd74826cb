//! A group of USB devices, by vendor, product and serial number. A container gets the node of each device below
//! `/dev/bus/usb`, but no nodes that a driver created.

use serde::Deserialize;
use windlass_config::{
    DiscoveryRule, EditTemplates, Grouping,
    document::{Diagnostics, Spanned},
};
use windlass_core::device::Access;

use super::group::SourceParts;
use crate::expression::{Conditions, any_of};

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct UsbDevice {
    vendor: Option<String>,
    product: Option<String>,
    serial: Option<String>,
}

/// USB device nodes, by bus number and device number.
const NODES: &str = "/dev/bus/usb/*/*";

/// Converts the group to parts of a source. With several descriptions, all matches form one device. With one
/// description, each match is a device.
pub(super) fn parts(
    group: Vec<Spanned<UsbDevice>>,
    line: u64,
    diagnostics: &mut Diagnostics,
) -> Option<SourceParts> {
    let unit = if group.len() > 1 { Grouping::All } else { Grouping::Each };
    if unit == Grouping::Each {
        diagnostics.warn(line, SEPARATE_DEVICES_WARNING);
    }
    let alternatives: Option<Vec<String>> =
        group.into_iter().map(|device| device.value.condition(device.line, diagnostics)).collect();
    let mut conditions = Conditions::default();
    conditions.and(any_of(&alternatives?));
    let expression = conditions.into_expression(line, diagnostics);
    let give = EditTemplates { found: Some(Access::ReadWrite), ..EditTemplates::default() };
    Some(SourceParts { find: DiscoveryRule::Nodes(vec![NODES.to_owned()]), expression, unit, give })
}

// === impl UsbDevice ===

impl UsbDevice {
    fn condition(self, line: u64, diagnostics: &mut Diagnostics) -> Option<String> {
        let mut conditions = Conditions::default();
        for (attribute, id) in [("usbVendor", self.vendor), ("usbProduct", self.product)] {
            let id = id.unwrap_or_default();
            let lower = id.to_ascii_lowercase();
            let digits = lower.trim_start_matches("0x");
            if digits.len() > 4 || u16::from_str_radix(digits, 16).is_err() {
                let text = "vendor and product: write four hexadecimal digits each, in quotes";
                diagnostics.error(line, format!("{id:?} is not a USB id; {text}"));
                return None;
            }
            conditions.one_of(attribute, &[format!("{digits:0>4}")]);
        }
        let serial: Vec<_> = self.serial.into_iter().filter(|serial| !serial.is_empty()).collect();
        conditions.one_of("usbSerial", &serial);
        Some(conditions.text())
    }
}

const SEPARATE_DEVICES_WARNING: &str =
    "each match is a separate device; in that plugin all matches form one device";
