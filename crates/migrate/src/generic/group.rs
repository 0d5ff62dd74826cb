//! A group of `generic-device-plugin`: nodes that a container gets as one device, found by path or on USB.

use serde::Deserialize;
use windlass_config::{
    DiscoveryRule, EditTemplates, Grouping, Sharing,
    document::{Diagnostics, Spanned},
};
use windlass_core::selector::DeviceExpression;

use super::{
    path::PathEntry,
    paths,
    usb::{self, UsbDevice},
};
use crate::{items, nics};

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Group {
    count: Option<Spanned<i64>>,
    paths: Option<Spanned<Vec<PathEntry>>>,
    usb: Option<Spanned<Vec<Spanned<UsbDevice>>>>,
}

/// Parts of a source of devices in the configuration, converted from a group.
#[derive(Debug)]
pub(super) struct SourceParts {
    pub(super) find: DiscoveryRule,
    pub(super) expression: Option<DeviceExpression>,
    pub(super) unit: Grouping,
    pub(super) give: EditTemplates,
}

// === impl Group ===

impl Group {
    /// Sharing by `count`: the number of containers that the group serves at once.
    pub(super) fn sharing(&self, diagnostics: &mut Diagnostics) -> Sharing {
        match &self.count {
            Some(count) if count.value < 0 => {
                diagnostics.error(count.line, "count cannot be negative");
                Sharing::Exclusive
            }
            Some(count) if count.value > 1 => nics::device_sharing(count, diagnostics),
            _ => Sharing::Exclusive,
        }
    }

    /// True if the plugin lets containers create (mknod) some of its nodes by default.
    pub(super) fn allows_mknod_by_default(&self) -> bool {
        let mut paths = self.paths.iter().flat_map(|paths| &paths.value);
        paths.any(PathEntry::allows_mknod_by_default)
    }

    /// Converts the group to parts of a source; `None` with a diagnostic if it has no equivalent.
    pub(super) fn into_parts(
        self,
        line: u64,
        diagnostics: &mut Diagnostics,
    ) -> Option<SourceParts> {
        let (paths, usb) = (items(self.paths), items(self.usb));
        match (paths.is_empty(), usb.is_empty()) {
            (false, false) => diagnostics.error(line, "a group has paths or usb, not both"),
            (true, true) => diagnostics.warn(line, "empty group skipped"),
            (false, true) => return paths::parts(paths, line, diagnostics),
            (true, false) => return usb::parts(usb, line, diagnostics),
        }
        None
    }
}
