//! Sysfs entries and nodes of a device that a profile describes.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use super::{
    ClassDevice, Tree,
    pci::{Function, sysfs_folder},
};
use crate::{
    card::PcieLink,
    pci::{PciId, PciPath},
    profile::{ChildDevice, Device, PciFunction},
    state::Model,
};

/// Major number of USB devices, from the kernel's list of devices.
const USB_MAJOR: u32 = 189;

/// Intel USB controller, which every simulated machine uses.
const USB_CONTROLLER: PciId = PciId { vendor: 0x8086, device: 0xa36d };
const CLASS_USB: u32 = 0x0c_03_30;

// === impl Tree ===

impl Tree {
    pub(super) fn any_device(&mut self, model: &Model, device: &Device) {
        let driver = model.driver_of(&device.name, device.driver.as_deref());
        let folder = device.sysfs_folder();
        if let Some(pci) = &device.pci {
            self.pci_device(model, pci, driver);
        } else {
            self.usb_controller(model, &folder);
            self.folder_device(device, driver);
        }
        for (path, text) in &device.files {
            self.text_file(folder.join(path), text);
        }
        for (path, target) in &device.links {
            self.link(folder.join(path), target);
        }
        // The device's own driver creates the remaining entries.
        if driver != device.driver.as_deref() {
            return;
        }
        for child in &device.children {
            self.child(&folder, child);
            if let (Some(pci), "drm") = (&device.pci, child.class.as_str()) {
                self.by_path(pci, child);
            }
        }
        for (path, text) in &device.elsewhere {
            self.text_file(path, text);
        }
    }

    /// Adds a text file. Device tree texts end with a zero byte in place of a newline.
    fn text_file(&mut self, path: impl AsRef<Path>, text: &str) {
        if text.ends_with('\0') {
            self.binary_file(path, text.as_bytes().to_vec());
        } else {
            self.file(path, text);
        }
    }

    fn pci_device(&mut self, model: &Model, pci: &PciFunction, driver: Option<&str>) {
        self.function(
            model,
            &Function {
                path: &pci.path,
                pci: pci.id,
                subsystem: pci.subsystem.unwrap_or(pci.id),
                class: pci.class,
                numa: pci.numa,
                link: PcieLink { generation: 4, width: 16 },
                driver,
                group: pci.group,
            },
        );
    }

    /// Adds the USB controller and root hub above a USB device, unless the profile has them.
    fn usb_controller(&mut self, model: &Model, folder: &Path) {
        let Some((controller, bus)) = controller_and_bus(folder) else { return };
        if !self.has(&sysfs_folder(&controller).join("vendor")) {
            let (pci, class) = (USB_CONTROLLER, CLASS_USB);
            let link = PcieLink { generation: 3, width: 1 };
            let driver = Some("xhci_hcd");
            let path = &controller;
            let (numa, group) = (None, None);
            self.function(
                model,
                &Function { path, pci, subsystem: pci, class, numa, link, driver, group },
            );
        }
        let hub = sysfs_folder(&controller).join(format!("usb{bus}"));
        if !self.has(&hub.join("busnum")) {
            let (number, node) = (usb_number(bus, 1), usb_node(bus, 1));
            let lines = [("DEVTYPE", "usb_device"), ("DRIVER", "usb")];
            let node = Some((number.as_str(), node.as_path()));
            self.class_device(&hub, &ClassDevice { class: "", node, lines: &lines });
            self.link_bus(&hub, "usb", Some("usb"));
            // The kernel uses the controller's address as the root hub's serial number.
            let serial = controller.address().to_string();
            let hub_files = [("idVendor", "1d6b"), ("idProduct", "0002"), ("devnum", "1")];
            self.files(&hub, &hub_files);
            self.file(hub.join("serial"), &serial);
            self.file(hub.join("busnum"), &bus.to_string());
        }
    }

    /// Adds a device without a PCI function, as its bus or class lists it.
    fn folder_device(&mut self, device: &Device, driver: Option<&str>) {
        let folder = device.sysfs_folder();
        let driver_line = driver.filter(|_| device.bus.is_some()).map(|driver| ("DRIVER", driver));
        let usb = device.usb_node();
        let is_reported = |key: &str| usb.is_some() && ["MAJOR", "MINOR", "DEVNAME"].contains(&key);
        let uevent_lines = lines(&device.uevent).filter(|(key, _)| !is_reported(key));
        let lines: Vec<_> = driver_line.into_iter().chain(uevent_lines).collect();
        let own_node = device.number.as_deref().zip(device.node.as_deref());
        let node =
            usb.as_ref().map(|(number, node)| (number.as_str(), node.as_path())).or(own_node);
        self.class_device(&folder, &ClassDevice { class: &device.class, node, lines: &lines });
        if let Some(bus) = &device.bus {
            self.link_bus(&folder, bus, driver);
        }
    }

    fn child(&mut self, parent: &Path, child: &ChildDevice) {
        let folder = parent.join(&child.folder);
        let number = child.number.as_deref();
        let node = number.zip(child.node.as_deref());
        let lines: Vec<_> = lines(&child.uevent).collect();
        self.class_device(&folder, &ClassDevice { class: &child.class, node, lines: &lines });
        for (path, text) in &child.files {
            self.text_file(folder.join(path), text);
        }
        if let Some(bus) = &child.bus {
            self.link_bus(&folder, bus, child.driver.as_deref());
        }
    }

    /// Adds udev's links to the nodes of a graphics device by its PCI address.
    fn by_path(&mut self, pci: &PciFunction, child: &ChildDevice) {
        let Some(name) = child.node.as_deref().and_then(Path::file_name) else { return };
        let name = name.display();
        let role = if name.to_string().starts_with("render") { "render" } else { "card" };
        let link = format!("dev/dri/by-path/pci-{}-{role}", pci.path.address());
        self.link_literal(link, format!("../{name}"));
    }
}

// === impl Device ===

impl Device {
    /// Sysfs folder of the device, relative to the tree's root.
    pub(crate) fn sysfs_folder(&self) -> PathBuf {
        match (&self.pci, &self.folder) {
            (Some(pci), _) => sysfs_folder(&pci.path),
            (None, Some(folder)) => Path::new("sys/devices").join(folder),
            (None, None) => Path::new("sys/devices/virtual").join(&self.name),
        }
    }

    /// Node created by the USB core, from the bus number and the device number.
    fn usb_node(&self) -> Option<(String, PathBuf)> {
        let number = |file: &str| self.files.get(Path::new(file))?.parse::<u32>().ok();
        let numbers = number("busnum").zip(number("devnum"));
        let (bus, device) =
            numbers.filter(|(bus, device)| (1..256).contains(bus) && *device > 0)?;
        Some((usb_number(bus, device), usb_node(bus, device)))
    }
}

/// Controller of a USB device, and the number of its bus.
fn controller_and_bus(folder: &Path) -> Option<(PciPath, u32)> {
    let text = folder.strip_prefix("sys/devices").ok()?.to_str()?;
    let (controller, path_below_bus) = text.split_once("/usb")?;
    let (bus, _) = path_below_bus.split_once('/')?;
    let bus = bus.parse().ok().filter(|bus| (1..256).contains(bus))?;
    Some((controller.parse().ok()?, bus))
}

/// Major and minor number of a USB device. Each bus has as many minors as addresses.
fn usb_number(bus: u32, device: u32) -> String {
    format!("{USB_MAJOR}:{}", (bus - 1) * 128 + device - 1)
}

fn usb_node(bus: u32, device: u32) -> PathBuf {
    format!("bus/usb/{bus:03}/{device:03}").into()
}

fn lines(uevent: &BTreeMap<String, String>) -> impl Iterator<Item = (&str, &str)> {
    uevent.iter().map(|(key, value)| (key.as_str(), value.as_str()))
}
