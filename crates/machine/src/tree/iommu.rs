//! IOMMU groups, and their VFIO device nodes.

use std::path::Path;

use super::{ClassDevice, Tree};

/// Driver that passes a function to a program.
const VFIO_DRIVER: &str = "vfio-pci";

/// Dynamic major number, as the kernel assigns it.
const VFIO_MAJOR: u32 = 243;

// === impl Tree ===

impl Tree {
    /// Adds a function to a group.
    pub(super) fn add_to_group(&mut self, function: &Path, group: u32, driver: Option<&str>) {
        let folder = Path::new("sys/kernel/iommu_groups").join(group.to_string());
        let address = function.file_name().expect("a function has an address");
        self.link(folder.join("devices").join(address), function);
        self.file(folder.join("type"), "DMA-FQ");
        self.link(function.join("iommu_group"), &folder);
        if driver == Some(VFIO_DRIVER) {
            self.vfio(group);
        }
    }

    fn vfio(&mut self, group: u32) {
        let folder = Path::new("sys/devices/virtual/vfio").join(group.to_string());
        let (number, node) = (format!("{VFIO_MAJOR}:{group}"), format!("vfio/{group}"));
        let node = Some((number.as_str(), Path::new(&node)));
        self.class_device(&folder, &ClassDevice { class: "vfio", node, ..Default::default() });
        self.misc("vfio", ("10:196", "vfio/vfio"));
    }
}
