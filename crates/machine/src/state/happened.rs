//! What has happened to devices that are no GPUs of NVIDIA's: what their profile says, and what is
//! different now.

use std::{collections::BTreeMap, path::PathBuf};

use serde::{Deserialize, Serialize};

use super::Model;
use crate::{pci::PciPath, profile::Device};

/// What is different about a device since its machine was made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Happened {
    /// It is out of its slot.
    pub unplugged: bool,
    /// What drives it.
    pub bound: Bound,
    /// Files in its folder: with another text, or gone.
    pub files: BTreeMap<PathBuf, Option<String>>,
}

/// What drives a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Bound {
    /// The driver that its profile names.
    #[default]
    Own,
    /// Nothing.
    Nothing,
    /// Another driver.
    Other(String),
}

// === impl Model ===

impl Model {
    /// Whether a device is in its slot.
    pub(crate) fn is_plugged(&self, name: &str) -> bool {
        self.happened.get(name).is_none_or(|happened| !happened.unplugged)
    }

    /// The folder in sysfs of a device that something has happened to, below the tree's root.
    pub(crate) fn folder_of(&self, name: &str) -> Option<PathBuf> {
        let device = self.devices.iter().find(|device| device.name == name);
        let nic = || self.nics.iter().find(|nic| nic.netdev == name).map(|nic| nic.path.clone());
        let function = || {
            let mut paths =
                self.nics.iter().flat_map(|nic| nic.virtual_functions().map(|(path, _)| path));
            paths.find(|path| path.address().to_string() == name)
        };
        let of_function = |path: PciPath| PathBuf::from("sys/devices").join(path.to_string());
        device.map(Device::sysfs_folder).or_else(|| nic().or_else(function).map(of_function))
    }

    /// The driver of a device now.
    pub(crate) fn driver_of<'a>(&'a self, name: &str, own: Option<&'a str>) -> Option<&'a str> {
        match self.happened.get(name).map_or(&Bound::Own, |happened| &happened.bound) {
            Bound::Own => own,
            Bound::Nothing => None,
            Bound::Other(driver) => Some(driver),
        }
    }
}
