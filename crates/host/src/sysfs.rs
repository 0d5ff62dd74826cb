//! Device tree of sysfs: bus devices and PCI functions above a folder.

use std::path::{Path, PathBuf};

use windlass_core::{
    device::{DeviceNode, Location},
    pci::{PciAddress, PciePath},
};

use super::{Host, PciFunction};

/// Limit on the bytes of a line: a sysfs page.
const MAX_BYTES: usize = 4_096;

const DEVICES: &str = "/sys/devices";

// === impl Host ===

impl Host {
    /// Text of a small file as one line; `None` if empty. Control characters become blanks.
    pub fn read_line(&self, absolute: impl AsRef<Path>) -> Option<String> {
        let bytes = self.read_bytes(absolute.as_ref()).ok()?;
        let text = String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_BYTES)]);
        // NUL separates the texts of a list in sysfs.
        let words =
            text.split(|character: char| character.is_control() || character.is_whitespace());
        let line = words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
        (!line.is_empty()).then_some(line)
    }

    /// Bus of a device, `usb`; `None` for a class device.
    pub fn bus_of(&self, folder: impl AsRef<Path>) -> Option<String> {
        let link = self.read_link(folder.as_ref().join("subsystem"))?;
        let mut parts = Path::new(&link).components().rev();
        let name = parts.next()?.as_os_str().to_str()?.to_owned();
        (parts.next()?.as_os_str() == "bus").then_some(name)
    }

    /// Bus device at or above a folder.
    pub fn device_of(&self, folder: &Path) -> Option<PathBuf> {
        ancestors(folder).find(|folder| self.bus_of(folder).is_some()).map(Path::to_owned)
    }

    /// Nearest PCI function at or above a folder.
    pub fn function_above(&self, folder: &Path) -> Option<PciFunction> {
        let address = |folder: &Path| folder.file_name()?.to_str()?.parse::<PciAddress>().ok();
        ancestors(folder)
            .find_map(|folder| Some(self.pci_function_in(address(folder)?, folder.to_owned())))
    }

    /// Location of a folder's device. The PCI address is set only if the device itself is a PCI function: a USB
    /// device is not its controller.
    pub fn location_of(&self, folder: &Path) -> Location {
        let bus = self.device_of(folder).and_then(|device| self.bus_of(device));
        let function = self.function_above(folder);
        let numa = ancestors(folder).find_map(|folder| self.read_text(folder.join("numa_node")));
        Location {
            pci: function
                .as_ref()
                .filter(|_| bus.as_deref() == Some("pci"))
                .map(|function| function.address),
            path: folder.to_str().and_then(PciePath::from_sysfs),
            // The kernel's -1 means no node.
            numa_node: numa.and_then(|node| node.parse().ok()),
            ..Location::default()
        }
    }

    /// Checks that a node still belongs to its device: the sysfs folder in its `proof` must name the node. Device
    /// numbers change when a driver is bound and at every boot.
    pub fn check_node(&self, node: &DeviceNode) -> Result<(), String> {
        let Some(folder) = &node.proof else { return Ok(()) };
        let path = node.path.display();
        let node_group = node.path.strip_prefix("/dev/vfio").ok().and_then(Path::to_str);
        let group = self.link_name(folder.join("iommu_group"));
        // The folder of a function under VFIO names its IOMMU group, any other folder its own node.
        let owner = match node_group.zip(group) {
            Some((own, group)) if self.is_bound_to_vfio(folder) => {
                Some((own.trim_start_matches("noiommu-") == group, group))
            }
            _ => self
                .uevent(folder, "DEVNAME")
                .map(|name| (Path::new("/dev").join(&name) == node.path, name)),
        };
        let folder = folder.display();
        match owner {
            Some((true, _)) => Ok(()),
            Some((false, other)) => {
                Err(format!("{path} is another device's now: {folder} has {other}"))
            }
            None => Err(format!("{path} may be another device's now: {folder} no longer names it")),
        }
    }
}

/// A folder and its parents, up to the root of all devices.
fn ancestors(folder: &Path) -> impl Iterator<Item = &Path> {
    folder
        .ancestors()
        .take_while(|folder| folder.starts_with(DEVICES) && *folder != Path::new(DEVICES))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn text_of_a_device_becomes_one_line() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let host = Host::new(root.path(), "/");
        let file = root.path().join("compatible");
        fs::write(&file, b"xlnx,axidma-chrdev\0xlnx,axi\n\x07").expect("written");
        assert_eq!(host.read_line("/compatible").as_deref(), Some("xlnx,axidma-chrdev xlnx,axi"));
        fs::write(&file, "\n").expect("written");
        assert_eq!(host.read_line("/compatible"), None);
    }
}
