//! A PCI function as sysfs describes it.

use std::{path::PathBuf, sync::Arc};

use windlass_core::{
    attribute::{AttributeName, AttributeValue, Attributes, standard},
    device::Place,
    pci::{PciAddress, PciePath},
};

use super::{
    Host,
    pci_index::{PCI_DEVICES, PciKind, listed_at},
};

/// Where a PCI function sits, and whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciFunction {
    /// Its address.
    pub address: PciAddress,
    folder: PathBuf,
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

/// Tells a compute card, `0x030200`, from one that drives a screen, `0x030000`.
const PCI_CLASS: AttributeName = AttributeName::new("windlass.dev", "pciClass");

// === impl Host ===

impl Host {
    /// The functions that are meant, by address. Blocks.
    pub fn pci_functions(&self, is_meant: impl Fn(&PciKind) -> bool) -> Vec<PciFunction> {
        let kinds = self.pci_kinds();
        let meant = kinds.iter().filter(|(_, kind)| is_meant(kind));
        let function = |(address, kind): (&PciAddress, &Arc<PciKind>)| {
            PciFunction::read(self, (*address, kind), listed_at(*address))
        };
        meant.map(function).collect()
    }

    /// Their addresses alone, in order. Blocks.
    pub fn pci_addresses(&self, is_meant: impl Fn(&PciKind) -> bool) -> Vec<PciAddress> {
        let kinds = self.pci_kinds();
        kinds.iter().filter(|(_, kind)| is_meant(kind)).map(|(address, _)| *address).collect()
    }

    /// Reads what sysfs says of a function.
    pub fn pci_function(&self, address: PciAddress) -> PciFunction {
        self.pci_function_in(address, listed_at(address))
    }

    /// Whether a function of this vendor, `10de`, is there. A kernel without PCI has none. Blocks.
    ///
    /// # Errors
    ///
    /// Why that is unknown: the functions cannot be listed, or none is of the vendor and one cannot be read.
    pub fn has_pci_vendor(&self, vendor: &str) -> Result<bool, String> {
        let host = self.for_one_look();
        let unlisted = host.refusal(PCI_DEVICES);
        if host.pci_kinds().values().any(|it| it.is_of_vendor(&[vendor])) {
            return Ok(true);
        }
        unlisted.or_else(|| host.unread_function()).map_or(Ok(false), Err)
    }

    /// As [`Host::pci_function`], by another path to its folder, by which others of its files are asked.
    pub(super) fn pci_function_in(&self, address: PciAddress, folder: PathBuf) -> PciFunction {
        let known = self.look.as_ref().and_then(|look| look.pci.get()?.get(&address).cloned());
        let kind = known.unwrap_or_else(|| Arc::new(PciKind::read(self, &folder)));
        PciFunction::read(self, (address, &kind), folder)
    }
}

// === impl PciFunction ===

impl PciFunction {
    fn read(host: &Host, (address, kind): (PciAddress, &PciKind), folder: PathBuf) -> Self {
        let path = |folder: &str| PciePath::from_sysfs(folder);
        let by_link = || path(&host.link(&folder)?);
        let device = host.text(folder.join("device"));
        let numa_node = host.text(folder.join("numa_node"));
        Self {
            address,
            path: folder.to_str().and_then(path).or_else(by_link),
            numa_node: numa_node.and_then(|node| node.parse().ok()),
            vendor: kind.vendor.clone(),
            device: device.map(|id| id.trim_start_matches("0x").to_owned()),
            class: kind.class.clone(),
            driver: host.link_name(folder.join("driver")),
            folder,
        }
    }

    /// Its folder.
    pub fn folder(&self) -> PathBuf {
        self.folder.clone()
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
