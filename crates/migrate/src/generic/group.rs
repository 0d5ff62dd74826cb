//! A group of `generic-device-plugin`: what travels together, found by path or on USB.

use serde::Deserialize;
use windlass_config::{
    Find, Give, Sharing, Unit,
    document::{Lined, Remarks},
};
use windlass_core::selector::DeviceExpression;

use super::{
    path::Member,
    paths,
    usb::{self, UsbDevice},
};
use crate::{nics, present};

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Group {
    count: Option<Lined<i64>>,
    paths: Option<Lined<Vec<Member>>>,
    usb: Option<Lined<Vec<Lined<UsbDevice>>>>,
}

/// A group as a source has it.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) find: Find,
    pub(super) expression: Option<DeviceExpression>,
    pub(super) unit: Unit,
    pub(super) give: Give,
}

// === impl Group ===

impl Group {
    /// How often the group can be handed out.
    pub(super) fn sharing(&self, remarks: &mut Remarks) -> Sharing {
        match &self.count {
            Some(count) if count.value < 0 => {
                remarks.wrong(count.line, "count cannot be negative");
                Sharing::Exclusive
            }
            Some(count) if count.value > 1 => nics::users(count, remarks),
            _ => Sharing::Exclusive,
        }
    }

    /// Whether the plugin lets containers make some of its nodes though nobody said so.
    pub(super) fn is_makable_by_default(&self) -> bool {
        let mut paths = self.paths.iter().flat_map(|paths| &paths.value);
        paths.any(Member::is_makable_by_default)
    }

    /// What a source is made of; `None`, with the reason, if the group cannot be one.
    pub(super) fn into_parts(self, line: u64, remarks: &mut Remarks) -> Option<Parts> {
        let (paths, usb) = (present(self.paths), present(self.usb));
        match (paths.is_empty(), usb.is_empty()) {
            (false, false) => remarks.wrong(line, "a group has paths or usb, not both"),
            (true, true) => remarks.warn(line, "a group of nothing is left out"),
            (false, true) => return paths::parts(paths, line, remarks),
            (true, false) => return usb::parts(usb, line, remarks),
        }
        None
    }
}
