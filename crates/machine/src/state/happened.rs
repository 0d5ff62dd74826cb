//! Changes of adapters and other devices, relative to their profile.

use std::{collections::BTreeMap, path::PathBuf};

use serde::{Deserialize, Serialize};

use super::Model;
use crate::{pci::PciPath, profile::Device};

/// Changes of a device since the machine's creation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceChanges {
    /// True if the device is out of its slot.
    pub unplugged: bool,
    /// Current driver binding.
    pub bound: DriverBinding,
    /// Changed files in the device's folder; `None` for a removed file.
    pub files: BTreeMap<PathBuf, Option<String>>,
}

/// Driver binding of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DriverBinding {
    /// The driver from the profile.
    #[default]
    Own,
    /// No driver.
    Nothing,
    /// Another driver.
    Other(String),
}

// === impl Model ===

impl Model {
    /// True if a device is in its slot.
    pub(crate) fn is_plugged(&self, name: &str) -> bool {
        self.happened.get(name).is_none_or(|changes| !changes.unplugged)
    }

    /// Sysfs folder of a changed device, relative to the tree's root.
    pub(crate) fn folder_of(&self, name: &str) -> Option<PathBuf> {
        let device = self.devices.iter().find(|device| device.name == name);
        let nic = || self.nics.iter().find(|nic| nic.netdev == name).map(|nic| nic.path.clone());
        let function = || {
            let mut paths =
                self.nics.iter().flat_map(|nic| nic.virtual_functions().map(|(path, _)| path));
            paths.find(|path| path.address().to_string() == name)
        };
        let function_folder = |path: PciPath| PathBuf::from("sys/devices").join(path.to_string());
        device.map(Device::sysfs_folder).or_else(|| nic().or_else(function).map(function_folder))
    }

    /// Current driver of a device.
    pub(crate) fn driver_of<'a>(
        &'a self,
        name: &str,
        profile_driver: Option<&'a str>,
    ) -> Option<&'a str> {
        match self.happened.get(name).map_or(&DriverBinding::Own, |changes| &changes.bound) {
            DriverBinding::Own => profile_driver,
            DriverBinding::Nothing => None,
            DriverBinding::Other(driver) => Some(driver),
        }
    }
}
