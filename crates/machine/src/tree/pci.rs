//! PCI functions and the bridges above them, in /sys/devices and /sys/bus/pci.

use std::path::{Path, PathBuf};

use super::Tree;
use crate::{
    card::PcieLink,
    machine::MachineError,
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

/// An Intel root port, and a Broadcom PCIe switch below it, whatever the machine really has.
const ROOT_PORT: PciId = PciId { vendor: 0x8086, device: 0x347a };
const SWITCH_PORT: PciId = PciId { vendor: 0x1000, device: 0xc030 };

/// What sysfs tells about a function.
pub(super) struct Function<'a> {
    pub path: &'a PciPath,
    pub pci: PciId,
    pub subsystem: PciId,
    pub class: u32,
    pub numa: Option<u32>,
    pub link: PcieLink,
    pub driver: &'static str,
}

// === impl Tree ===

impl Tree {
    pub(super) fn write_gpu_function(&self, model: &Model, gpu: &Gpu) -> Result<(), MachineError> {
        self.write_function(
            model,
            &Function {
                path: &gpu.path,
                pci: gpu.card.pci,
                subsystem: gpu.card.subsystem,
                class: CLASS_3D,
                numa: gpu.numa,
                link: gpu.card.pcie,
                driver: "nvidia",
            },
        )
    }

    /// A switch that the host does not see has nothing to write.
    pub(super) fn write_switch(&self, model: &Model, switch: &Switch) -> Result<(), MachineError> {
        let Some(path) = &switch.path else { return Ok(()) };
        self.write_function(
            model,
            &Function {
                path,
                pci: switch.pci,
                subsystem: switch.pci,
                class: CLASS_OTHER_BRIDGE,
                numa: switch.numa,
                link: PcieLink { generation: 2, width: 2 },
                driver: "nvidia-nvswitch",
            },
        )
    }

    /// A function, and the bridges on the way to it.
    pub(super) fn write_function(
        &self,
        model: &Model,
        function: &Function<'_>,
    ) -> Result<(), MachineError> {
        let mut folder = PathBuf::from("sys/devices").join(function.path.root());
        let (address, bridges) = function.path.end_and_bridges();
        for (depth, bridge) in bridges.iter().enumerate() {
            folder.push(bridge.to_string());
            if !self.has(&folder) {
                let pci = if depth == 0 { ROOT_PORT } else { SWITCH_PORT };
                let class = CLASS_PCI_BRIDGE;
                let facts =
                    Function { pci, subsystem: pci, class, driver: "pcieport", ..*function };
                self.write_facts(model, &folder, (*bridge, &facts))?;
            }
        }
        folder.push(address.to_string());
        self.write_facts(model, &folder, (address, function))
    }

    /// The function itself; bridges above it stay.
    pub(super) fn remove_function(&self, path: &PciPath) -> Result<(), MachineError> {
        self.remove(bus_link(path.address()))?;
        self.remove(sysfs_folder(path))
    }

    fn write_facts(
        &self,
        model: &Model,
        folder: &Path,
        (address, function): (PciAddress, &Function<'_>),
    ) -> Result<(), MachineError> {
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
                ("local_cpulist", &model.cpus_near(function.numa).to_string()),
                ("current_link_speed", speed),
                ("max_link_speed", speed),
                ("current_link_width", &width),
                ("max_link_width", &width),
                ("uevent", &uevent(address, function)),
            ],
        )?;
        self.link(bus_link(address), folder)?;
        let driver = Path::new("sys/bus/pci/drivers").join(function.driver);
        self.link(driver.join(address.to_string()), folder)?;
        self.link(folder.join("driver"), &driver)?;
        self.link(folder.join("subsystem"), Path::new("sys/bus/pci"))
    }
}

/// The function's folder below the tree's root.
pub(super) fn sysfs_folder(path: &PciPath) -> PathBuf {
    Path::new("sys/devices").join(path.to_string())
}

fn bus_link(address: PciAddress) -> PathBuf {
    Path::new("sys/bus/pci/devices").join(address.to_string())
}

fn uevent(address: PciAddress, function: &Function<'_>) -> String {
    let (pci, subsystem) = (function.pci, function.subsystem);
    format!(
        "DRIVER={}\nPCI_CLASS={:X}\nPCI_ID={:04X}:{:04X}\nPCI_SUBSYS_ID={:04X}:{:04X}\n\
         PCI_SLOT_NAME={address}",
        function.driver, function.class, pci.vendor, pci.device, subsystem.vendor, subsystem.device,
    )
}
