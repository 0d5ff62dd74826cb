//! Device of any kind, described by its sysfs files and device nodes.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::pci::{PciId, PciPath};

/// Device of any kind: a PCI function, or a folder of sysfs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Device {
    /// Name that faults use; no file of the tree contains it.
    pub name: String,
    /// PCI function, if the device is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pci: Option<PciFunction>,
    /// Folder below `sys/devices`, if the device is not a PCI function: `platform/axi-regs`,
    /// `pci0000:00/0000:00:14.0/usb1/1-4`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub folder: Option<PathBuf>,
    /// Bus that lists the device, `usb`, `platform`; `pci` for a PCI function.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bus: Option<String>,
    /// Class that lists the device in place of a bus: `misc`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub class: String,
    /// Major and minor number of the device's own node, `10:229`. A USB device derives its node from
    /// `busnum` and `devnum`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number: Option<String>,
    /// Path of the device's own node below `/dev`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<PathBuf>,
    /// Bound driver, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Additional lines of `uevent`, besides those of the bus.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub uevent: BTreeMap<String, String>,
    /// Other files, by path in the device's folder.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<PathBuf, String>,
    /// Links, by path in the device's folder; a target is a host path without the first `/`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub links: BTreeMap<PathBuf, PathBuf>,
    /// Class devices that the driver creates, with their nodes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<ChildDevice>,
    /// Files outside of the device's folder that appear and disappear with the device, by host path without
    /// the first `/`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub elsewhere: BTreeMap<PathBuf, String>,
}

/// PCI properties of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PciFunction {
    /// Path from the host bridge.
    pub path: PciPath,
    /// PCI vendor and device id.
    pub id: PciId,
    /// PCI subsystem vendor and device id; equal to `id` if unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subsystem: Option<PciId>,
    /// Class, subclass and programming interface, `0x120000`.
    pub class: u32,
    /// Index of the NUMA node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa: Option<u32>,
    /// IOMMU group, on a machine with an IOMMU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<u32>,
}

/// Class device, below its parent device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ChildDevice {
    /// Folder below the parent's, `drm/card0`. The last component is the name.
    pub folder: PathBuf,
    /// Class that lists the device, `drm`; if empty, a bus or nothing lists it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub class: String,
    /// Bus that lists the device in place of a class: `usb`, for an interface of a device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bus: Option<String>,
    /// Bound driver on the bus, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Major and minor number of the node, `226:0`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number: Option<String>,
    /// Path of the node below `/dev`, `dri/card0`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<PathBuf>,
    /// Additional lines of `uevent`, besides those of the node.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub uevent: BTreeMap<String, String>,
    /// Files of the device.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<PathBuf, String>,
}

// === impl Device ===

impl Device {
    /// All paths in the description.
    pub(super) fn paths(&self) -> impl Iterator<Item = &Path> {
        let children = self.children.iter().flat_map(|child| {
            let own_paths = [Some(&child.folder), child.node.as_ref()].into_iter().flatten();
            own_paths.chain(child.files.keys())
        });
        let links = self.links.iter().flat_map(|(path, target)| [path, target]);
        let own_paths = self
            .folder
            .iter()
            .chain(&self.node)
            .chain(self.files.keys())
            .chain(self.elsewhere.keys());
        own_paths.chain(links).chain(children).map(PathBuf::as_path)
    }
}
