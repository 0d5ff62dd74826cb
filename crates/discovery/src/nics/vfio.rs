//! Functions with user-space drivers: VFIO and UIO.

use std::path::Path;

use windlass_core::device::DeviceNode;
use windlass_host::{Host, is_vfio};

/// VFIO nodes of a function, and the reason to withhold the function, if there is one.
pub(super) struct Vfio {
    pub(super) nodes: Vec<DeviceNode>,
    pub(super) withheld: Option<String>,
}

const GROUPS: &str = "/sys/kernel/iommu_groups";

/// Drivers that a member may have without making its IOMMU group unusable (`vfio_dev_driver_allowed` in the kernel).
const ALLOWED_GROUP_DRIVERS: [&str; 1] = ["pci-stub"];

/// PCI class of bridges, which do not count as members.
const BRIDGE: &str = "0x06";

/// True for a user-space driver without IOMMU: `uio_pci_generic`, `igb_uio`.
pub(super) fn is_uio(driver: &str) -> bool {
    driver.contains("uio")
}

/// VFIO nodes of a function, and the reason if its IOMMU group is unusable.
pub(super) fn read_vfio(host: &Host, folder: &Path) -> Vfio {
    let group = host.link_name(folder.join("iommu_group"));
    let withheld = match group {
        None => Some("no IOMMU group: is the IOMMU on?".to_owned()),
        Some(group) => group_conflict(host, folder, &group),
    };
    Vfio { nodes: host.vfio_nodes(folder), withheld }
}

pub(super) fn uio_nodes(host: &Host, folder: &Path) -> Vec<DeviceNode> {
    let folder = folder.join("uio");
    let node = |name: &String| host.node_or(&folder.join(name), Path::new("/dev").join(name));
    host.entry_names(&folder).iter().map(node).collect()
}

/// Reason why the IOMMU group is unusable: a member with another driver blocks the whole group. The function
/// itself is a member, so a list without it is incomplete.
fn group_conflict(host: &Host, folder: &Path, group: &str) -> Option<String> {
    let devices_folder = format!("{GROUPS}/{group}/devices");
    let members = host.entry_names(&devices_folder);
    let is_function =
        |member: &String| folder.file_name().is_some_and(|name| name == member.as_str());
    let exists = |member: &String| host.exists(Path::new(&devices_folder).join(member));
    if !members.iter().any(is_function) || !members.iter().all(exists) {
        return Some(format!(
            "the members of its IOMMU group {group} cannot be read: the agent needs {GROUPS}"
        ));
    }
    members.into_iter().find_map(|member| {
        let function = member.parse().map(|address| host.pci_function(address));
        let (class, driver) = match function {
            Ok(function) => (function.class.unwrap_or_default(), function.driver),
            // Platform devices are no PCI functions.
            Err(_) => (
                String::new(),
                host.link_name(Path::new(&devices_folder).join(&member).join("driver")),
            ),
        };
        let driver = driver.filter(|_| !class.starts_with(BRIDGE))?;
        let is_allowed = is_vfio(&driver) || ALLOWED_GROUP_DRIVERS.contains(&driver.as_str());
        (!is_allowed)
            .then(|| format!("{member} is in its IOMMU group {group} and has the driver {driver}"))
    })
}
