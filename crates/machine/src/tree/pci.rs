//! Sysfs entries of PCI functions and of the bridges above them.

use std::path::{Path, PathBuf};

use super::{Tree, config_space::config_space};
use crate::{
    card::PcieLink,
    pci::{PciAddress, PciId, PciPath},
    profile::Switch,
    state::{Gpu, Model},
};

/// PCI classes, from the PCI code and ID assignment specification.
pub(super) const CLASS_ETHERNET: u32 = 0x02_00_00;
pub(super) const CLASS_INFINIBAND: u32 = 0x02_07_00;
const CLASS_3D: u32 = 0x03_02_00;
const CLASS_PCI_BRIDGE: u32 = 0x06_04_00;
const CLASS_OTHER_BRIDGE: u32 = 0x06_80_00;

/// Ids of bridges in every simulated machine: an Intel root port and a Broadcom PCIe switch.
const ROOT_PORT: PciId = PciId { vendor: 0x8086, device: 0x347a };
const SWITCH_PORT: PciId = PciId { vendor: 0x1000, device: 0xc030 };

/// PCI function in sysfs.
pub(super) struct Function<'a> {
    pub path: &'a PciPath,
    pub pci: PciId,
    pub subsystem: PciId,
    pub class: u32,
    pub numa: Option<u32>,
    pub link: PcieLink,
    /// Bound driver, while loaded.
    pub driver: Option<&'a str>,
    /// IOMMU group, on a machine with an IOMMU.
    pub group: Option<u32>,
}

// === impl Tree ===

impl Tree {
    pub(super) fn gpu_function(&mut self, model: &Model, gpu: &Gpu) {
        self.function(
            model,
            &Function {
                path: &gpu.path,
                pci: gpu.card.pci,
                subsystem: gpu.card.subsystem,
                class: CLASS_3D,
                numa: gpu.numa,
                link: gpu.card.pcie,
                driver: model.driver_loaded.then_some("nvidia"),
                group: None,
            },
        );
    }

    /// Adds a switch. A switch hidden from the host has no entries.
    pub(super) fn switch(&mut self, model: &Model, switch: &Switch) {
        let Some(path) = &switch.path else { return };
        self.function(
            model,
            &Function {
                path,
                pci: switch.pci,
                subsystem: switch.pci,
                class: CLASS_OTHER_BRIDGE,
                numa: switch.numa,
                link: PcieLink { generation: 2, width: 2 },
                driver: model.driver_loaded.then_some("nvidia-nvswitch"),
                group: None,
            },
        );
    }

    /// Adds a function and the bridges on its path.
    pub(super) fn function(&mut self, model: &Model, function: &Function<'_>) {
        let mut folder = PathBuf::from("sys/devices").join(function.path.root());
        let (address, bridges) = function.path.function_and_bridges();
        for (depth, bridge) in bridges.iter().enumerate() {
            folder.push(bridge.to_string());
            if !self.has(&folder) {
                let pci = if depth == 0 { ROOT_PORT } else { SWITCH_PORT };
                let class = CLASS_PCI_BRIDGE;
                let driver = Some("pcieport");
                let bridge_function =
                    Function { pci, subsystem: pci, class, driver, group: None, ..*function };
                self.function_files(model, &folder, (*bridge, &bridge_function));
            }
        }
        folder.push(address.to_string());
        self.function_files(model, &folder, (address, function));
    }

    fn function_files(
        &mut self,
        model: &Model,
        folder: &Path,
        (address, function): (PciAddress, &Function<'_>),
    ) {
        let node = function.numa.map_or_else(|| "-1".to_owned(), |node| node.to_string());
        let (pci, subsystem) = (function.pci, function.subsystem);
        let (speed, width) = (function.link.speed(), function.link.width.to_string());
        self.files(
            folder,
            &[
                ("vendor", &format!("0x{:04x}", pci.vendor)),
                ("device", &format!("0x{:04x}", pci.device)),
                ("subsystem_vendor", &format!("0x{:04x}", subsystem.vendor)),
                ("subsystem_device", &format!("0x{:04x}", subsystem.device)),
                ("class", &format!("0x{:06x}", function.class)),
                ("numa_node", &node),
                ("local_cpulist", &model.local_cpus(function.numa).to_string()),
                ("current_link_speed", speed),
                ("max_link_speed", speed),
                ("current_link_width", &width),
                ("max_link_width", &width),
                ("uevent", &uevent(address, function)),
            ],
        );
        self.binary_file(folder.join("config"), config_space(function));
        self.link_bus(folder, "pci", function.driver);
        if let Some(group) = function.group {
            self.add_to_group(folder, group, function.driver);
        }
    }
}

/// Folder of the function, relative to the tree's root.
pub(super) fn sysfs_folder(path: &PciPath) -> PathBuf {
    Path::new("sys/devices").join(path.to_string())
}

fn uevent(address: PciAddress, function: &Function<'_>) -> String {
    let (pci, subsystem) = (function.pci, function.subsystem);
    let driver = function.driver.map(|driver| format!("DRIVER={driver}\n")).unwrap_or_default();
    format!(
        "{driver}PCI_CLASS={:X}\nPCI_ID={:04X}:{:04X}\nPCI_SUBSYS_ID={:04X}:{:04X}\n\
         PCI_SLOT_NAME={address}",
        function.class, pci.vendor, pci.device, subsystem.vendor, subsystem.device,
    )
}
