//! Sysfs entries of devices of any bus or class: links from the bus or class, and the device node.

use std::{fmt::Write as _, path::Path};

use super::Tree;

/// Name of the built-in driver, which has no module.
const BUILT_IN_DRIVER: &str = "pcieport";

/// Class device, created by the driver of another device.
#[derive(Default)]
pub(super) struct ClassDevice<'a> {
    /// Class that lists the device; empty for none.
    pub class: &'a str,
    /// Major and minor number of the node, and the node's path below `/dev`.
    pub node: Option<(&'a str, &'a Path)>,
    /// Additional lines of `uevent`.
    pub lines: &'a [(&'a str, &'a str)],
}

// === impl Tree ===

impl Tree {
    pub(super) fn class_device(&mut self, folder: &Path, device: &ClassDevice<'_>) {
        let mut uevent = String::new();
        if let Some((number, node)) = device.node {
            let (major, minor) = number.split_once(':').unwrap_or((number, "0"));
            let node = node.display();
            write!(uevent, "MAJOR={major}\nMINOR={minor}\nDEVNAME={node}\n")
                .expect("a string accepts all text");
            self.file(folder.join("dev"), number);
            self.device(&format!("dev/{node}"));
            // `sys/dev/block` and `sys/dev/char` list nodes by number.
            let kind = if device.class == "block" { "block" } else { "char" };
            self.link(Path::new("sys/dev").join(kind).join(number), folder);
        }
        for (key, value) in device.lines {
            writeln!(uevent, "{key}={value}").expect("a string accepts all text");
        }
        self.binary_file(folder.join("uevent"), uevent.into_bytes());
        self.link_class(folder, device.class);
    }

    /// Adds links between device and class, and from the device to its parent. The folder above the device may have the
    /// name of the class; its parent is then the parent device.
    fn link_class(&mut self, folder: &Path, class: &str) {
        if class.is_empty() {
            return;
        }
        let device_name = folder.file_name().expect("a device has a name");
        let list = Path::new("sys/class").join(class);
        self.link(list.join(device_name), folder);
        self.link(folder.join("subsystem"), &list);
        if class == "block" {
            self.link(Path::new("sys/block").join(device_name), folder);
        }
        let folder_above = folder.parent().unwrap_or(folder);
        let is_class_folder = folder_above.file_name().is_some_and(|name| name == class);
        let parent = if is_class_folder {
            folder_above.parent().unwrap_or(folder_above)
        } else {
            folder_above
        };
        if !parent.ends_with("sys/devices/virtual") {
            self.link(folder.join("device"), parent);
        }
    }

    /// Lists a device on a bus, with its driver on the bus.
    pub(super) fn link_bus(&mut self, folder: &Path, bus: &str, driver: Option<&str>) {
        let device_name = folder.file_name().expect("a device has a name");
        let bus = Path::new("sys/bus").join(bus);
        self.link(bus.join("devices").join(device_name), folder);
        self.link(folder.join("subsystem"), &bus);
        if let Some(driver) = driver {
            let folder_of_driver = bus.join("drivers").join(driver);
            self.link(folder_of_driver.join(device_name), folder);
            self.link(folder.join("driver"), &folder_of_driver);
            if driver != BUILT_IN_DRIVER {
                self.module(&folder_of_driver, driver);
            }
        }
    }

    /// Adds the module of a PCI driver, and the links between module and driver.
    fn module(&mut self, driver: &Path, name: &str) {
        let Some(bus) = driver.parent().and_then(Path::parent).filter(|bus| bus.ends_with("pci"))
        else {
            return;
        };
        let bus_name = bus.file_name().expect("a bus has a name").display();
        let module = Path::new("sys/module").join(name.replace('-', "_"));
        self.link(module.join(format!("drivers/{bus_name}:{name}")), driver);
        self.link(driver.join("module"), &module);
    }

    /// Adds a device of the class `misc`, which has no parent device.
    pub(super) fn misc(&mut self, name: &str, (number, node): (&str, &str)) {
        let folder = Path::new("sys/devices/virtual/misc").join(name);
        let node = Some((number, Path::new(node)));
        self.class_device(&folder, &ClassDevice { class: "misc", node, ..ClassDevice::default() });
    }
}
