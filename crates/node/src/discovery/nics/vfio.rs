//! Functions that user space drives: VFIO groups, and UIO.

use std::path::{Path, PathBuf};

use windlass_core::device::DeviceNode;

use crate::host::Host;

/// The VFIO nodes of a function, or why it must not be handed out.
pub(super) struct Vfio {
    pub(super) nodes: Vec<DeviceNode>,
    pub(super) withheld: Option<String>,
}

const GROUPS: &str = "/sys/kernel/iommu_groups";

/// Who opens a group opens it through this node.
const CONTAINER: &str = "/dev/vfio/vfio";

/// The same for single devices, from Linux 6.6 on.
const IOMMUFD: &str = "/dev/iommu";

/// Drivers of a group's members that leave the group to one user, `vfio_dev_driver_allowed` in the kernel.
const HARMLESS: [&str; 1] = ["pci-stub"];

/// The class of bridges, which are no member that counts.
const BRIDGE: &str = "0x06";

/// Whether a driver hands its function to user space: `vfio-pci`, or a variant of a vendor's.
pub(super) fn is_vfio(driver: &str) -> bool {
    driver.contains("vfio")
}

/// Whether a driver does so without an IOMMU: `uio_pci_generic`, `igb_uio`.
pub(super) fn is_uio(driver: &str) -> bool {
    driver.contains("uio")
}

/// What a function gives by way of VFIO. Numbers of groups change from boot to boot and are asked anew
/// at each look.
pub(super) fn of_device(host: &Host, folder: &Path) -> Vfio {
    let Some(group) = host.link_name(folder.join("iommu_group")) else {
        let withheld = "no IOMMU group: is the IOMMU on?".to_owned();
        return Vfio { nodes: Vec::new(), withheld: Some(withheld) };
    };
    let by_group = [DeviceNode::shared(CONTAINER), group_node(host, &group)];
    let by_device = device_node(host, folder).filter(|_| host.has(IOMMUFD));
    let by_device = by_device.map(|node| [DeviceNode::shared(IOMMUFD), node]);
    // A kernel that has single devices may have been built without groups.
    let has_group = host.has(&by_group[1].path) || by_device.is_none();
    let nodes = by_group.into_iter().filter(|_| has_group);
    Vfio {
        nodes: nodes.chain(by_device.into_iter().flatten()).collect(),
        withheld: other_driver(host, &group),
    }
}

/// The UIO nodes of a function.
pub(super) fn uio(host: &Host, folder: &Path) -> Vec<DeviceNode> {
    let folder = folder.join("uio");
    let node = |name: String| {
        let usual = || DeviceNode::new(Path::new("/dev").join(&name));
        host.node_at(&folder.join(&name)).map_or_else(usual, |found| found.node)
    };
    host.names(&folder).into_iter().map(node).collect()
}

/// Without an IOMMU the node has another name on the host, and the usual one for programs.
fn group_node(host: &Host, group: &str) -> DeviceNode {
    let usual = Path::new("/dev/vfio").join(group);
    let name = host.text(format!("{GROUPS}/{group}/name"));
    let (path, inside) = match name.as_deref() {
        Some("vfio-noiommu") => {
            (Path::new("/dev/vfio").join(format!("noiommu-{group}")), Some(usual))
        }
        _ => (usual, None),
    };
    let name = path.file_name().map(PathBuf::from).unwrap_or_default();
    let class = Path::new("/sys/class/vfio").join(name);
    let proof = host.has(class.join("uevent")).then_some(class);
    DeviceNode { inside, proof, ..DeviceNode::new(path) }
}

fn device_node(host: &Host, folder: &Path) -> Option<DeviceNode> {
    let folder = folder.join("vfio-dev");
    let name = host.names(&folder).into_iter().next()?;
    let usual = || DeviceNode::new(Path::new("/dev/vfio/devices").join(&name));
    Some(host.node_at(&folder.join(&name)).map_or_else(usual, |found| found.node))
}

/// A group goes to one user as a whole: the kernel refuses it while another driver has a member.
fn other_driver(host: &Host, group: &str) -> Option<String> {
    let members = format!("{GROUPS}/{group}/devices");
    host.names(&members).into_iter().find_map(|member| {
        let folder = Path::new(&members).join(&member);
        let is_bridge = host.text(folder.join("class"))?.starts_with(BRIDGE);
        let driver = host.link_name(folder.join("driver")).filter(|_| !is_bridge)?;
        let leaves_it = is_vfio(&driver) || HARMLESS.contains(&driver.as_str());
        (!leaves_it)
            .then(|| format!("{member} is in its IOMMU group {group} and has the driver {driver}"))
    })
}
