//! PCI functions in sysfs.

use std::{path::PathBuf, sync::Arc};

use windlass_core::{
    attribute::{AttributeName, AttributeValue, Attributes, PCIE_SWITCH, standard},
    device::Location,
    pci::{PciAddress, PciePath},
};

use super::{
    Host,
    pci_index::{PCI_DEVICES, PciKind, pci_folder},
};

/// A PCI function: location, identity, driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciFunction {
    /// PCI address.
    pub address: PciAddress,
    folder: PathBuf,
    /// Path from the host bridge; `None` if the kernel does not list the function.
    pub path: Option<PciePath>,
    /// Nearest NUMA node; the kernel's -1 is `None`.
    pub numa_node: Option<u32>,
    /// Vendor id, `10de`.
    pub vendor: Option<String>,
    /// Device id.
    pub device: Option<String>,
    /// Class, subclass and programming interface in sysfs spelling, `0x030200`.
    pub class: Option<String>,
    /// Bound driver.
    pub driver: Option<String>,
}

/// Distinguishes compute cards, `0x030200`, from display cards, `0x030000`.
const PCI_CLASS: AttributeName = AttributeName::new("windlass.dev", "pciClass");

// === impl Host ===

impl Host {
    /// Matching functions, in order of address. Blocks.
    pub fn pci_functions(&self, matches: impl Fn(&PciKind) -> bool) -> Vec<PciFunction> {
        let kinds = self.pci_kinds();
        let matching = kinds.iter().filter(|(_, kind)| matches(kind));
        let function = |(address, kind): (&PciAddress, &Arc<PciKind>)| {
            PciFunction::read(self, *address, kind, pci_folder(*address))
        };
        matching.map(function).collect()
    }

    /// Sorted addresses of matching functions. Blocks.
    pub fn pci_addresses(&self, matches: impl Fn(&PciKind) -> bool) -> Vec<PciAddress> {
        let kinds = self.pci_kinds();
        kinds.iter().filter(|(_, kind)| matches(kind)).map(|(address, _)| *address).collect()
    }

    /// Reads a function from sysfs.
    pub fn pci_function(&self, address: PciAddress) -> PciFunction {
        self.pci_function_in(address, pci_folder(address))
    }

    /// True if a function of this vendor, `10de`, is present. Blocks.
    ///
    /// # Errors
    ///
    /// Fails if the functions cannot be listed, or if an unreadable function may be of the vendor.
    pub fn has_pci_vendor(&self, vendor: &str) -> Result<bool, String> {
        let host = self.for_one_scan();
        let list_error = host.folder_error(PCI_DEVICES);
        if host.pci_kinds().values().any(|kind| kind.is_of_vendor(&[vendor])) {
            return Ok(true);
        }
        list_error.or_else(|| host.pci_function_error()).map_or(Ok(false), Err)
    }

    /// Like [`Host::pci_function`], with another path to the folder, so that reads below that path share the cache.
    pub(super) fn pci_function_in(&self, address: PciAddress, folder: PathBuf) -> PciFunction {
        let cached =
            self.scan_cache.as_ref().and_then(|cache| cache.pci.get()?.get(&address).cloned());
        let kind = cached.unwrap_or_else(|| Arc::new(PciKind::read(self, &folder)));
        PciFunction::read(self, address, &kind, folder)
    }
}

// === impl PciFunction ===

impl PciFunction {
    fn read(host: &Host, address: PciAddress, kind: &PciKind, folder: PathBuf) -> Self {
        let path = |folder: &str| PciePath::from_sysfs(folder);
        let by_link = || path(&host.read_link(&folder)?);
        let device = host.read_text(folder.join("device"));
        let numa_node = host.read_text(folder.join("numa_node"));
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

    /// Sysfs folder.
    pub fn folder(&self) -> PathBuf {
        self.folder.clone()
    }

    /// Address as part of an id, `0000-1b-00-0`.
    pub fn id(&self) -> String {
        self.address.to_dashed()
    }

    /// Location of a device that is this function.
    pub fn location(&self) -> Location {
        Location {
            pci: Some(self.address),
            path: self.path.clone(),
            numa_node: self.numa_node,
            ..Location::default()
        }
    }

    /// Kubernetes' standard PCI attributes, the switch, and the class.
    pub fn attributes(&self) -> Attributes {
        let address = AttributeValue::string(self.address.to_string());
        let root = self.path.as_ref().map(|path| AttributeValue::string(path.root()));
        let switch = self.path.as_ref().and_then(PciePath::switch);
        let switch = switch.map(|address| AttributeValue::string(address.to_string()));
        let numa_node = self.numa_node.map(|node| AttributeValue::Int(node.into()));
        let values = [
            (standard::PCI_BUS_ID, Some(address)),
            (standard::PCIE_ROOT, root),
            (PCIE_SWITCH, switch),
            (standard::NUMA_NODE, numa_node),
            (PCI_CLASS, self.class.as_deref().map(AttributeValue::string)),
        ];
        values.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }
}
