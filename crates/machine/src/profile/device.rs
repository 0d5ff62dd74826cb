//! A device of any sort, by what the kernel shows of it.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::pci::{PciId, PciPath};

/// A device of any sort: a PCI function, or a folder of sysfs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Device {
    /// What it is called when something happens to it; in no file.
    pub name: String,
    /// Its PCI function, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pci: Option<PciFunction>,
    /// Its folder below `sys/devices`, if it is no PCI function: `platform/axi-regs`,
    /// `pci0000:00/0000:00:14.0/usb1/1-4`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub folder: Option<PathBuf>,
    /// The bus that lists it, `usb`, `platform`; that of a PCI function is `pci`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bus: Option<String>,
    /// Its class, if a class lists it and no bus does: `misc`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub class: String,
    /// Major and minor number of its own node, `10:229`. A USB device has one by its `busnum` and `devnum`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number: Option<String>,
    /// Its own node below `/dev`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<PathBuf>,
    /// Its driver, if one is bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Lines of its `uevent`, besides those that its bus makes.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub uevent: BTreeMap<String, String>,
    /// Its other files, by their path in its folder.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<PathBuf, String>,
    /// Its links, by their path in its folder; a target is a path of the host without the first `/`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub links: BTreeMap<PathBuf, PathBuf>,
    /// What its driver makes of it: devices of a class, with nodes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<Child>,
    /// Files that are not in its folder and come and go with it, by their path on the host without the
    /// first `/`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub elsewhere: BTreeMap<PathBuf, String>,
}

/// What is particular to a PCI function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PciFunction {
    /// The way from the host bridge.
    pub path: PciPath,
    /// PCI vendor and device.
    pub id: PciId,
    /// PCI subsystem vendor and device; those of the device if unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subsystem: Option<PciId>,
    /// Class, subclass and programming interface, `0x120000`.
    pub class: u32,
    /// Index of its NUMA node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa: Option<u32>,
    /// Its IOMMU group, where the machine has an IOMMU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<u32>,
}

/// A device of a class, below the device that its driver made it of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Child {
    /// Its folder below the device's, `drm/card0`. The last component is its name.
    pub folder: PathBuf,
    /// Its class, `drm`, which lists it; on a bus, or nowhere, if empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub class: String,
    /// The bus that lists it, if no class does: `usb`, for an interface of a device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bus: Option<String>,
    /// Its driver on that bus, if one is bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Major and minor number of its node, `226:0`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number: Option<String>,
    /// Its node below `/dev`, `dri/card0`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<PathBuf>,
    /// Lines of its `uevent`, besides those that tell of its node.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub uevent: BTreeMap<String, String>,
    /// Its files.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<PathBuf, String>,
}

// === impl Device ===

impl Device {
    /// Every path that it says something of.
    pub(super) fn paths(&self) -> impl Iterator<Item = &Path> {
        let children = self.children.iter().flat_map(|child| {
            let own = [Some(&child.folder), child.node.as_ref()].into_iter().flatten();
            own.chain(child.files.keys())
        });
        let links = self.links.iter().flat_map(|(path, target)| [path, target]);
        let own = self
            .folder
            .iter()
            .chain(&self.node)
            .chain(self.files.keys())
            .chain(self.elsewhere.keys());
        own.chain(links).chain(children).map(PathBuf::as_path)
    }
}
