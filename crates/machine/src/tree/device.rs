//! Devices of any sort: what a profile says the kernel shows of them.

use std::path::{Path, PathBuf};

use super::{
    Tree,
    pci::{Function, sysfs_folder},
};
use crate::{
    card::PcieLink,
    profile::{Child, Device},
    state::Model,
};

// === impl Tree ===

impl Tree {
    pub(super) fn any_device(&mut self, model: &Model, device: &Device) {
        let folder = match &device.pci {
            Some(pci) => {
                self.function(
                    model,
                    &Function {
                        path: &pci.path,
                        pci: pci.id,
                        subsystem: pci.subsystem.unwrap_or(pci.id),
                        class: pci.class,
                        numa: pci.numa,
                        link: PcieLink { generation: 4, width: 16 },
                        driver: device.driver.as_deref(),
                    },
                );
                sysfs_folder(&pci.path)
            }
            None => self.folder_device(device),
        };
        for (path, text) in &device.files {
            self.file(folder.join(path), text);
        }
        for (path, target) in &device.links {
            self.link(folder.join(path), target);
        }
        for child in &device.children {
            self.child(&folder, child);
        }
        for (path, text) in &device.elsewhere {
            self.file(path, text);
        }
    }

    /// A device that is no PCI function, as its bus lists it.
    fn folder_device(&mut self, device: &Device) -> PathBuf {
        let own = device.folder.clone().unwrap_or_else(|| Path::new("virtual").join(&device.name));
        let folder = Path::new("sys/devices").join(own);
        let name = folder.file_name().unwrap_or_default().to_owned();
        let driver = device.driver.iter().map(|driver| ("DRIVER", driver.as_str()));
        let more = device.uevent.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        let lines: Vec<_> =
            driver.chain(more).map(|(key, value)| format!("{key}={value}")).collect();
        self.file(folder.join("uevent"), &lines.join("\n"));
        if let Some(bus) = &device.bus {
            let bus = Path::new("sys/bus").join(bus);
            self.link(bus.join("devices").join(&name), &folder);
            self.link(folder.join("subsystem"), &bus);
            if let Some(driver) = &device.driver {
                let driver = bus.join("drivers").join(driver);
                self.link(driver.join(&name), &folder);
                self.link(folder.join("driver"), &driver);
            }
        }
        folder
    }

    fn child(&mut self, parent: &Path, child: &Child) {
        let folder = parent.join(&child.folder);
        let name = child.folder.file_name().unwrap_or_default();
        let mut lines = Vec::new();
        if let Some(number) = &child.number {
            self.file(folder.join("dev"), number);
            let (major, minor) = number.split_once(':').unwrap_or((number, "0"));
            lines.extend([format!("MAJOR={major}"), format!("MINOR={minor}")]);
            // Where sysfs lists nodes by number.
            self.link(Path::new("sys/dev/char").join(number), &folder);
        }
        if let Some(node) = &child.node {
            lines.push(format!("DEVNAME={}", node.display()));
            self.device(&format!("dev/{}", node.display()));
        }
        self.file(folder.join("uevent"), &lines.join("\n"));
        for (path, text) in &child.files {
            self.file(folder.join(path), text);
        }
        self.link(folder.join("device"), parent);
        if !child.class.is_empty() {
            let class = Path::new("sys/class").join(&child.class);
            self.link(class.join(name), &folder);
            self.link(folder.join("subsystem"), &class);
        }
    }
}
