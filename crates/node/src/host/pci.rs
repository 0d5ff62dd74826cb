//! A PCI function as sysfs describes it.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use windlass_core::{
    attribute::{AttributeName, AttributeValue, Attributes, standard},
    device::Place,
    pci::{PciAddress, PciePath},
};

use super::Host;

/// Where a PCI function sits, and whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciFunction {
    /// Its address.
    pub address: PciAddress,
    /// The way to it from the host bridge; `None` where the kernel does not list the function.
    pub path: Option<PciePath>,
    /// The nearest NUMA node; the kernel's -1 is `None`.
    pub numa_node: Option<u32>,
    /// Vendor id, such as `10de`.
    pub vendor: Option<String>,
    /// Device id.
    pub device: Option<String>,
    /// Class, subclass and programming interface as sysfs writes them, `0x030200`.
    pub class: Option<String>,
    /// The driver that is bound to it.
    pub driver: Option<String>,
}

pub(super) const PCI_DEVICES: &str = "/sys/bus/pci/devices";

/// Tells a compute card, `0x030200`, from one that drives a screen, `0x030000`.
const PCI_CLASS: AttributeName = AttributeName::new("windlass.dev", "pciClass");

// === impl Host ===

impl Host {
    /// Reads what sysfs says of a function.
    pub fn pci_function(&self, address: PciAddress) -> PciFunction {
        let folder = format!("{PCI_DEVICES}/{address}");
        let id = |name: &str| {
            let text = self.text(format!("{folder}/{name}"))?;
            Some(text.trim_start_matches("0x").to_owned())
        };
        PciFunction {
            address,
            path: self.link(&folder).as_deref().and_then(PciePath::from_sysfs),
            numa_node: self.text(format!("{folder}/numa_node")).and_then(|node| node.parse().ok()),
            vendor: id("vendor"),
            device: id("device"),
            class: self.text(format!("{folder}/class")),
            driver: self.link_name(format!("{folder}/driver")),
        }
    }

    /// Whether a function of this vendor, `0x10de`, is there. A kernel without PCI has none. Blocks.
    ///
    /// # Errors
    ///
    /// The functions cannot be listed, or none is of the vendor and one cannot be read.
    pub fn has_pci_vendor(&self, vendor: &str) -> io::Result<bool> {
        let entries = match fs::read_dir(self.path(PCI_DEVICES)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            entries => entries?,
        };
        let mut unread = None;
        for entry in entries {
            let file = Path::new(PCI_DEVICES).join(entry?.file_name()).join("vendor");
            match self.try_text(file) {
                Ok(found) if found == vendor => return Ok(true),
                // One that was unplugged since.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                found => unread = found.err().or(unread),
            }
        }
        unread.map_or(Ok(false), Err)
    }
}

// === impl PciFunction ===

impl PciFunction {
    /// Its folder.
    pub fn folder(&self) -> PathBuf {
        Path::new(PCI_DEVICES).join(self.address.to_string())
    }

    /// The address as ids have it, `0000-1b-00-0`.
    pub fn id(&self) -> String {
        self.address.to_string().replace([':', '.'], "-")
    }

    /// The place of a device that is this function.
    pub fn place(&self) -> Place {
        Place {
            pci: Some(self.address),
            path: self.path.clone(),
            numa_node: self.numa_node,
            ..Place::default()
        }
    }

    /// The attributes that Kubernetes defines for PCI devices, and the class.
    pub fn attributes(&self) -> Attributes {
        let address = AttributeValue::string(self.address.to_string());
        let root = self.path.as_ref().map(|path| AttributeValue::string(path.root()));
        let numa_node = self.numa_node.map(|node| AttributeValue::Int(node.into()));
        let all = [
            (standard::PCI_BUS_ID, Some(address)),
            (standard::PCIE_ROOT, root),
            (standard::NUMA_NODE, numa_node),
            (PCI_CLASS, self.class.as_deref().map(AttributeValue::string)),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }
}
