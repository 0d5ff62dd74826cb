//! Devices that are no PCI functions, as every bus and class of the kernel shows them: links from the
//! list of their bus or class, and for those with a node its number and its name.

use std::{fmt::Write as _, path::Path};

use super::Tree;

/// A driver that is no module.
const BUILT_IN: &str = "pcieport";

/// A device of a class, which a driver made of another device.
#[derive(Default)]
pub(super) struct ClassDevice<'a> {
    /// The class that lists it; empty for none.
    pub class: &'a str,
    /// Major and minor number of its node, and the node's path below `/dev`.
    pub node: Option<(&'a str, &'a Path)>,
    /// Further lines of its `uevent`.
    pub lines: &'a [(&'a str, &'a str)],
}

// === impl Tree ===

impl Tree {
    pub(super) fn class_device(&mut self, folder: &Path, device: &ClassDevice<'_>) {
        let mut uevent = String::new();
        if let Some((number, node)) = device.node {
            let (major, minor) = number.split_once(':').unwrap_or((number, "0"));
            let node = node.display();
            write!(uevent, "MAJOR={major}\nMINOR={minor}\nDEVNAME={node}\n").expect("a string");
            self.file(folder.join("dev"), number);
            self.device(&format!("dev/{node}"));
            // Where sysfs lists nodes by number.
            let kind = if device.class == "block" { "block" } else { "char" };
            self.link(Path::new("sys/dev").join(kind).join(number), folder);
        }
        for (key, value) in device.lines {
            writeln!(uevent, "{key}={value}").expect("a string");
        }
        self.bytes(folder.join("uevent"), uevent.into_bytes());
        self.in_class(folder, device.class);
    }

    /// Links to and from the class, and to the device that this one was made of. The class has a
    /// folder between the two, but where a device is below another of its class.
    fn in_class(&mut self, folder: &Path, class: &str) {
        if class.is_empty() {
            return;
        }
        let own = folder.file_name().expect("a device has a name");
        let list = Path::new("sys/class").join(class);
        self.link(list.join(own), folder);
        self.link(folder.join("subsystem"), &list);
        if class == "block" {
            self.link(Path::new("sys/block").join(own), folder);
        }
        let above = folder.parent().unwrap_or(folder);
        let between = above.file_name().is_some_and(|name| name == class);
        let parent = if between { above.parent().unwrap_or(above) } else { above };
        if !parent.ends_with("sys/devices/virtual") {
            self.link(folder.join("device"), parent);
        }
    }

    /// Lists a device on a bus, and with a driver of that bus.
    pub(super) fn on_bus(&mut self, folder: &Path, bus: &str, driver: Option<&str>) {
        let own = folder.file_name().expect("a device has a name");
        let bus = Path::new("sys/bus").join(bus);
        self.link(bus.join("devices").join(own), folder);
        self.link(folder.join("subsystem"), &bus);
        if let Some(driver) = driver {
            let folder_of_driver = bus.join("drivers").join(driver);
            self.link(folder_of_driver.join(own), folder);
            self.link(folder.join("driver"), &folder_of_driver);
            if driver != BUILT_IN {
                self.module(&folder_of_driver, driver);
            }
        }
    }

    /// The module that a driver of PCI functions came with, and the links between the two.
    fn module(&mut self, driver: &Path, name: &str) {
        let Some(bus) = driver.parent().and_then(Path::parent).filter(|bus| bus.ends_with("pci"))
        else {
            return;
        };
        let own = bus.file_name().expect("a bus has a name").display();
        let module = Path::new("sys/module").join(name.replace('-', "_"));
        self.link(module.join(format!("drivers/{own}:{name}")), driver);
        self.link(driver.join("module"), &module);
    }

    /// A node of the kernel's own, which belongs to no device.
    pub(super) fn misc(&mut self, name: &str, (number, node): (&str, &str)) {
        let folder = Path::new("sys/devices/virtual/misc").join(name);
        let node = Some((number, Path::new(node)));
        self.class_device(&folder, &ClassDevice { class: "misc", node, ..ClassDevice::default() });
    }
}
