//! Changes of all devices except NVIDIA GPUs, and their syntax on the command line.

use std::{fmt, path::PathBuf};

/// Change of a device: an adapter, a virtual function, or any other device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceEvent {
    /// The device is removed with all its parts.
    Unplug,
    /// The removed device returns to its slot.
    Plug,
    /// A USB device moves to another port, `2-1.4`: path and number change, the serial number stays.
    Replug(String),
    /// The driver unbinds.
    Unbind,
    /// A driver binds: another one, or the device's own.
    Bind(String),
    /// The number of an adapter's virtual functions changes to this number.
    SetVirtualFunctions(u16),
    /// The IOMMU group number changes, as after a reboot.
    SetIommuGroup(u32),
    /// A file in the device's sysfs folder changes or appears.
    SetFile(PathBuf, String),
    /// A file or folder in the device's sysfs folder disappears.
    RemoveFile(PathBuf),
    /// The cable of an adapter is unplugged.
    LinkDown,
    /// The cable of an adapter is plugged in.
    LinkUp,
}

/// Every change in command line syntax, with its meaning. `eth0`, `stick` and `board` name devices or
/// interfaces; a PCI address works for either.
pub(super) const EXAMPLES: &[(&str, &str)] = &[
    ("unplug:eth0", "removes a device with all its parts"),
    ("plug:eth0", "puts a removed device back"),
    ("replug:stick=2-1", "moves a USB device to another port"),
    ("unbind:eth0", "unbinds a device from its driver"),
    ("bind:eth0=vfio-pci", "binds a device to this driver"),
    ("vfs:eth0=4", "sets the number of an adapter's virtual functions"),
    ("group:eth0=7", "changes the number of a device's IOMMU group"),
    ("set:board:state=unknown", "writes a file in a device's sysfs folder"),
    ("unset:board:state", "removes a file from a device's sysfs folder"),
    ("link-down:eth0", "unplugs the cable of an adapter"),
    ("link-up:eth0", "plugs in the cable of an adapter"),
];

// === impl DeviceEvent ===

impl DeviceEvent {
    /// Parses `vfs:eth0=4` into a device name and a change.
    pub(super) fn parse(text: &str) -> Option<(String, Self)> {
        let (keyword, argument) = text.split_once(':')?;
        // PCI addresses contain colons but no `=`, and file names contain neither.
        let pair = || argument.split_once('=').filter(|(_, value)| !value.is_empty());
        let parse_file = |text: &str| {
            let (name, file) = text.rsplit_once(':')?;
            Some((name.to_owned(), PathBuf::from(file)))
        };
        let (name, event) = match keyword {
            "unplug" => (argument.to_owned(), Self::Unplug),
            "plug" => (argument.to_owned(), Self::Plug),
            "unbind" => (argument.to_owned(), Self::Unbind),
            "link-down" => (argument.to_owned(), Self::LinkDown),
            "link-up" => (argument.to_owned(), Self::LinkUp),
            "replug" => {
                pair().map(|(name, port)| (name.to_owned(), Self::Replug(port.to_owned())))?
            }
            "bind" => {
                pair().map(|(name, driver)| (name.to_owned(), Self::Bind(driver.to_owned())))?
            }
            "vfs" => {
                let (name, count) = pair()?;
                (name.to_owned(), Self::SetVirtualFunctions(count.parse().ok()?))
            }
            "group" => {
                let (name, number) = pair()?;
                (name.to_owned(), Self::SetIommuGroup(number.parse().ok()?))
            }
            "set" => {
                let (name_and_file, value) = argument.split_once('=')?;
                let (name, file) = parse_file(name_and_file)?;
                (name, Self::SetFile(file, value.to_owned()))
            }
            "unset" => parse_file(argument).map(|(name, file)| (name, Self::RemoveFile(file)))?,
            _ => return None,
        };
        (!name.is_empty()).then_some((name, event))
    }

    /// Formats a change in the syntax of [`Self::parse`].
    pub(super) fn format(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unplug => write!(f, "unplug:{name}"),
            Self::Plug => write!(f, "plug:{name}"),
            Self::Replug(port) => write!(f, "replug:{name}={port}"),
            Self::Unbind => write!(f, "unbind:{name}"),
            Self::Bind(driver) => write!(f, "bind:{name}={driver}"),
            Self::SetVirtualFunctions(count) => write!(f, "vfs:{name}={count}"),
            Self::SetIommuGroup(number) => write!(f, "group:{name}={number}"),
            Self::SetFile(file, text) => write!(f, "set:{name}:{}={text}", file.display()),
            Self::RemoveFile(file) => write!(f, "unset:{name}:{}", file.display()),
            Self::LinkDown => write!(f, "link-down:{name}"),
            Self::LinkUp => write!(f, "link-up:{name}"),
        }
    }
}
