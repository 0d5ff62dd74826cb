//! Device nodes of any kind of device, from its sysfs folder.

use std::path::{Component, Path, PathBuf};

use windlass_core::{device::DeviceNode, pci::PciAddress};

use super::Host;

/// A device node with its sysfs folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundNode {
    /// The node. Its `proof` is the folder, which later shows if the node still belongs to the device.
    pub node: DeviceNode,
    /// Name of the folder, `uverbs0`.
    pub name: String,
    /// Class of the folder, `infiniband_verbs`; empty without one.
    pub class: String,
}

/// Depth of the search in folders. The deepest known node, of a serial port on a USB hub, has depth five.
const MAX_DEPTH: u32 = 6;

/// Limit on the folders per device. A folder with more of them is a bus, not a device.
const MAX_FOLDERS: u32 = 2_000;

// === impl Host ===

impl Host {
    /// Nodes of the device with this folder, by path. Skips PCI functions, USB devices and subfunctions below it, which
    /// are separate devices.
    pub fn nodes_of(&self, folder: impl AsRef<Path>) -> Vec<FoundNode> {
        let mut walk = Walk { host: self, found: Vec::new(), remaining_folders: MAX_FOLDERS };
        walk.visit(folder.as_ref(), MAX_DEPTH);
        walk.found.sort_by(|a, b| a.node.path.cmp(&b.node.path));
        walk.found
    }

    /// Value of a key in the folder's `uevent`.
    pub fn uevent(&self, folder: impl AsRef<Path>, key: &str) -> Option<String> {
        let text = self.read_text(folder.as_ref().join("uevent"))?;
        let mut lines = text.lines().filter_map(|line| line.split_once('='));
        lines.find(|(name, _)| *name == key).map(|(_, value)| value.to_owned())
    }

    /// Last component of a link's target: `driver`, `subsystem`, `iommu_group`.
    pub fn link_name(&self, link: impl AsRef<Path>) -> Option<String> {
        Path::new(&self.read_link(link)?).file_name()?.to_str().map(str::to_owned)
    }

    /// Node of a sysfs folder, or `fallback` if the kernel does not name the node.
    pub fn node_or(&self, folder: &Path, fallback: impl Into<PathBuf>) -> DeviceNode {
        self.node_at(folder).map_or_else(|| DeviceNode::new(fallback), |found_node| found_node.node)
    }

    /// Node of a single sysfs folder.
    pub fn node_at(&self, folder: &Path) -> Option<FoundNode> {
        let path = below_dev(&self.uevent(folder, "DEVNAME")?)?;
        let proof = Some(folder.to_owned());
        Some(FoundNode {
            node: DeviceNode { proof, ..DeviceNode::new(path) },
            name: folder.file_name()?.to_str()?.to_owned(),
            class: self.link_name(folder.join("subsystem")).unwrap_or_default(),
        })
    }
}

/// Path below `/dev` of a name such as `dri/card0`. `None` for a name with `..` or another special component.
fn below_dev(name: &str) -> Option<PathBuf> {
    let is_plain = |part| matches!(part, Component::Normal(_));
    let is_below = !name.is_empty() && Path::new(name).components().all(is_plain);
    is_below.then(|| Path::new("/dev").join(name))
}

/// Walk through the folders of one device.
struct Walk<'a> {
    host: &'a Host,
    found: Vec<FoundNode>,
    remaining_folders: u32,
}

// === impl Walk ===

impl Walk<'_> {
    fn visit(&mut self, folder: &Path, depth: u32) {
        if self.host.exists(folder.join("dev")) {
            self.found.extend(self.host.node_at(folder));
        }
        if depth == 0 {
            return;
        }
        for child in self.host.subfolders(folder) {
            if self.remaining_folders == 0 {
                return;
            }
            self.remaining_folders -= 1;
            let child = folder.join(child);
            if !self.is_separate_device(&child) {
                self.visit(&child, depth - 1);
            }
        }
    }

    fn is_separate_device(&self, folder: &Path) -> bool {
        let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.parse::<PciAddress>().is_ok()
            || name.contains(".sf.")
            || self.host.uevent(folder, "DEVTYPE").as_deref() == Some("usb_device")
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    fn folder(root: &Path, path: &str, uevent: &str) {
        let folder = root.join(path);
        fs::create_dir_all(&folder).expect("made");
        fs::write(folder.join("uevent"), uevent).expect("written");
        if uevent.contains("DEVNAME") {
            fs::write(folder.join("dev"), "1:2\n").expect("written");
        }
    }

    #[test]
    fn nodes_are_found_below_a_device_but_not_below_its_neighbours() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let root = root.path();
        folder(root, "sys/d/0000:01:00.0", "DRIVER=amdgpu\n");
        folder(root, "sys/d/0000:01:00.0/drm/card0", "DEVNAME=dri/card0\n");
        folder(root, "sys/d/0000:01:00.0/0000:02:00.0/drm/card1", "DEVNAME=dri/card1\n");
        folder(root, "sys/d/0000:01:00.0/1-1", "DEVTYPE=usb_device\nDEVNAME=bus/usb/001/002\n");
        symlink("..", root.join("sys/d/0000:01:00.0/drm/card0/device")).expect("linked");
        let host = Host::new(root, "/");
        let nodes = host.nodes_of("/sys/d/0000:01:00.0");
        let paths: Vec<_> =
            nodes.iter().map(|found| found.node.path.display().to_string()).collect();
        assert_eq!(paths, ["/dev/dri/card0"]);
        assert_eq!(nodes[0].node.proof, Some("/sys/d/0000:01:00.0/drm/card0".into()));
    }

    #[test]
    fn a_name_outside_dev_is_no_node() {
        for name in ["", ".", "..", "../etc/shadow", "dri/../../etc/shadow", "/etc/shadow"] {
            let root = tempfile::tempdir().expect("a temporary folder");
            folder(root.path(), "sys/d/a", &format!("DEVNAME={name}\n"));
            assert_eq!(Host::new(root.path(), "/").nodes_of("/sys/d/a"), [], "{name:?}");
        }
    }
}
