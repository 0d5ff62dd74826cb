//! VFIO nodes of a function: by IOMMU group, and by device.

use std::path::{Path, PathBuf};

use windlass_core::device::DeviceNode;

use super::Host;

/// VFIO container node, which every user of a group node needs.
const CONTAINER: &str = "/dev/vfio/vfio";

/// IOMMU node, which every user of a device node needs; since Linux 6.6.
const IOMMUFD: &str = "/dev/iommu";

const GROUPS: &str = "/sys/kernel/iommu_groups";

/// True for a VFIO driver: `vfio-pci`, or a vendor's variant such as `mlx5_vfio_pci`.
pub fn is_vfio(driver: &str) -> bool {
    driver.contains("vfio")
}

// === impl Host ===

impl Host {
    /// Nodes of a function with a VFIO driver: group node and VFIO container node, and device nodes if the kernel has
    /// them. Empty for other drivers. Group numbers change between boots, so they are read at each scan.
    pub fn vfio_nodes(&self, folder: &Path) -> Vec<DeviceNode> {
        let group = self.link_name(folder.join("iommu_group"));
        let Some(group) = group.filter(|_| self.is_bound_to_vfio(folder)) else {
            return Vec::new();
        };
        let group_nodes = [self.group_node(folder, &group), DeviceNode::shared(CONTAINER)];
        let device_nodes = self.own_vfio_node(folder).filter(|_| self.exists(IOMMUFD));
        let device_nodes = device_nodes.map(|node| [node, DeviceNode::shared(IOMMUFD)]);
        // A kernel with device nodes may lack groups.
        let has_group = self.exists(&group_nodes[0].path) || device_nodes.is_none();
        let group_nodes = group_nodes.into_iter().filter(|_| has_group);
        group_nodes.chain(device_nodes.into_iter().flatten()).collect()
    }

    pub(super) fn is_bound_to_vfio(&self, folder: &Path) -> bool {
        self.link_name(folder.join("driver")).is_some_and(|driver| is_vfio(&driver))
    }

    /// Node of the function's group. Its `proof` is the folder of the function, which names the current group.
    fn group_node(&self, folder: &Path, group: &str) -> DeviceNode {
        let (path, container_path) = self.group_paths(group);
        DeviceNode {
            inside: container_path,
            proof: Some(folder.to_owned()),
            ..DeviceNode::new(path)
        }
    }

    /// Path of a group node on the host, and in the container if it differs: without an IOMMU, the host's name begins
    /// with `noiommu-`, but programs expect the usual name. The node itself is checked too, because the group's `name`
    /// file is not readable everywhere.
    fn group_paths(&self, group: &str) -> (PathBuf, Option<PathBuf>) {
        let usual_path = Path::new("/dev/vfio").join(group);
        let no_iommu_path = Path::new("/dev/vfio").join(format!("noiommu-{group}"));
        let name = self.read_text(format!("{GROUPS}/{group}/name"));
        if name.as_deref() == Some("vfio-noiommu") || self.exists(&no_iommu_path) {
            (no_iommu_path, Some(usual_path))
        } else {
            (usual_path, None)
        }
    }

    fn own_vfio_node(&self, folder: &Path) -> Option<DeviceNode> {
        let folder = folder.join("vfio-dev");
        let name = self.entry_names(&folder).into_iter().next()?;
        Some(self.node_or(&folder.join(&name), Path::new("/dev/vfio/devices").join(&name)))
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    const FOLDER: &str = "/sys/devices/pci0000:00/0000:00:02.0";

    /// A PCI function in an IOMMU group, with a driver.
    fn host(driver: &str, group: &str) -> (tempfile::TempDir, Host) {
        let root = tempfile::tempdir().expect("a temporary folder");
        let folder = root.path().join(&FOLDER[1..]);
        fs::create_dir_all(&folder).expect("made");
        let link = |target: String, name: &str| symlink(target, folder.join(name)).expect("linked");
        link(format!("../../../kernel/iommu_groups/{group}"), "iommu_group");
        link(format!("../../../bus/pci/drivers/{driver}"), "driver");
        let host = Host::new(root.path(), "/");
        (root, host)
    }

    #[test]
    fn a_group_node_is_confirmed_by_the_functions_folder() {
        for driver in ["vfio-pci", "mlx5_vfio_pci"] {
            let (root, host) = host(driver, "12");
            let nodes = host.vfio_nodes(Path::new(FOLDER));
            assert_eq!(nodes[0].path, Path::new("/dev/vfio/12"));
            assert!(nodes[1].shared);
            assert_eq!(host.check_node(&nodes[0]), Ok(()));
            let link = root.path().join(&FOLDER[1..]).join("iommu_group");
            fs::remove_file(&link).expect("removed");
            symlink("../../../kernel/iommu_groups/13", &link).expect("linked");
            let error = host.check_node(&nodes[0]).expect_err("renumbered");
            assert_eq!(error, format!("/dev/vfio/12 is another device's now: {FOLDER} has 13"));
        }
        let (_root, host) = host("mlx5_core", "12");
        assert_eq!(host.vfio_nodes(Path::new(FOLDER)), []);
    }

    #[test]
    fn a_kernel_without_groups_has_a_node_for_each_function() {
        let (root, host) = host("vfio-pci", "12");
        let device_folder = root.path().join(&FOLDER[1..]).join("vfio-dev/vfio0");
        fs::create_dir_all(&device_folder).expect("made");
        fs::write(device_folder.join("uevent"), "DEVNAME=vfio/devices/vfio0\n").expect("written");
        fs::create_dir_all(root.path().join("dev/vfio")).expect("made");
        fs::write(root.path().join("dev/iommu"), "").expect("written");
        let paths = || {
            let nodes = host.vfio_nodes(Path::new(FOLDER));
            nodes.iter().map(|node| node.path.display().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(paths(), ["/dev/vfio/devices/vfio0", "/dev/iommu"]);
        fs::write(root.path().join("dev/vfio/12"), "").expect("written");
        assert_eq!(paths()[..2], ["/dev/vfio/12", CONTAINER]);
        assert_eq!(paths().len(), 4);
    }
}
