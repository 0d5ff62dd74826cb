//! A PCI function as sysfs describes it.

use std::path::{Path, PathBuf};

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

/// What a function is and whose, as far as it is said.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) vendor: Option<String>,
    pub(super) device: Option<String>,
    pub(super) class: Option<String>,
    pub(super) driver: Option<String>,
}

pub(super) const PCI_DEVICES: &str = "/sys/bus/pci/devices";

/// Tells a compute card, `0x030200`, from one that drives a screen, `0x030000`.
const PCI_CLASS: AttributeName = AttributeName::new("windlass.dev", "pciClass");

// === impl Host ===

impl Host {
    /// Reads what sysfs says of a function.
    pub fn pci_function(&self, address: PciAddress) -> PciFunction {
        let folder = format!("{PCI_DEVICES}/{address}");
        let Identity { vendor, device, class, driver } = self.pci_identity(&folder);
        PciFunction {
            address,
            path: self.link(&folder).as_deref().and_then(PciePath::from_sysfs),
            numa_node: self.text(format!("{folder}/numa_node")).and_then(|node| node.parse().ok()),
            vendor,
            device,
            class,
            driver,
        }
    }

    /// By the one file that says all of it, or else by the four that say a part each: to open files is what a look
    /// costs.
    pub(super) fn pci_identity(&self, folder: &str) -> Identity {
        let told = self.text(format!("{folder}/uevent"));
        told.as_deref().and_then(Identity::told).unwrap_or_else(|| {
            let id = |name: &str| {
                let text = self.text(format!("{folder}/{name}"))?;
                Some(text.trim_start_matches("0x").to_owned())
            };
            Identity {
                vendor: id("vendor"),
                device: id("device"),
                class: self.text(format!("{folder}/class")),
                driver: self.link_name(format!("{folder}/driver")),
            }
        })
    }
}

// === impl Identity ===

impl Identity {
    /// As the kernel tells it where a function comes (`pci_uevent` in `drivers/pci/pci-driver.c`), in the words that
    /// the function's own files have: `PCI_CLASS=30200`, `PCI_ID=10DE:2330`, and `DRIVER` where one is bound.
    fn told(uevent: &str) -> Option<Self> {
        let value =
            |key: &str| uevent.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        let number = |hex: &str| u32::from_str_radix(hex, 16).ok();
        let (vendor, device) = value("PCI_ID")?.split_once(':')?;
        Some(Self {
            vendor: Some(format!("{:04x}", number(vendor)?)),
            device: Some(format!("{:04x}", number(device)?)),
            class: Some(format!("{:#08x}", number(value("PCI_CLASS")?)?)),
            driver: value("DRIVER").map(str::to_owned),
        })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_function_is_one_file_says_as_the_others_do() {
        let uevent = "DRIVER=nvme\nPCI_CLASS=10802\nPCI_ID=144D:0824\nPCI_SUBSYS_ID=144D:A801\n";
        let some = |text: &str| Some(text.to_owned());
        let (vendor, device, class) = (some("144d"), some("0824"), some("0x010802"));
        let bound = Identity { vendor, device, class, driver: some("nvme") };
        assert_eq!(Identity::told(uevent), Some(bound));
        let unbound = Identity::told("PCI_CLASS=20000\nPCI_ID=15B3:1021").expect("all is said");
        assert_eq!((unbound.class.as_deref(), unbound.driver), (Some("0x020000"), None));
    }

    #[test]
    fn a_file_that_does_not_say_all_says_nothing() {
        for half in ["", "PCI_CLASS=10802", "PCI_ID=144D:A824", "PCI_CLASS=?\nPCI_ID=144D:A824"] {
            assert_eq!(Identity::told(half), None, "{half}");
        }
    }
}
