//! RDMA devices: device nodes and network namespaces.
//!
//! The RDMA devices of a function are those in its sysfs folder. A match by interface name or GUID would be wrong: with
//! IP over InfiniBand the GUID of the node differs from the GUID of the port.

use std::path::{Path, PathBuf};

use windlass_config::RdmaNode;
use windlass_core::device::DeviceNode;
use windlass_host::Host;

use super::ports::{Port, PortReader, PortReport};

#[derive(Debug)]
pub(super) struct RdmaDevice {
    /// `mlx5_0`
    pub(super) name: String,
    pub(super) port_report: PortReport,
    /// Device nodes that exist so far.
    pub(super) nodes: Vec<(RdmaNode, DeviceNode)>,
}

/// Network namespaces in which an RDMA device works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RdmaNetns {
    /// All namespaces.
    Shared,
    /// Only the namespace into which the device was moved.
    Exclusive,
    /// Not reported: a kernel without RDMA, or an old kernel, whose RDMA devices are shared.
    Unknown,
}

/// Default names of software RDMA devices: `rxe_register_device` and `siw_device_create` in the kernel.
const SOFTWARE_DEVICE_NAMES: [&str; 2] = ["rxe", "Software iWARP"];

const NETNS_MODE: &str = "/sys/module/ib_core/parameters/netns_mode";

/// Folder of a function's RDMA device.
pub(super) fn folder(function: impl AsRef<Path>, name: &str) -> PathBuf {
    function.as_ref().join("infiniband").join(name)
}

pub(super) fn read_rdma_devices(
    host: &Host,
    ports: &mut PortReader,
    function: &Path,
) -> Vec<RdmaDevice> {
    let mut names = host.entry_names(function.join("infiniband"));
    names.retain(|name| !is_software(host, &folder(function, name)));
    names.sort_by_key(|name| (name.len(), name.clone()));
    names.into_iter().map(|name| RdmaDevice::read(host, ports, function, name)).collect()
}

/// True for a software RDMA device. A renamed `rxe` device is recognised by its `parent` file, which only
/// this driver has.
pub(super) fn is_software(host: &Host, folder: &Path) -> bool {
    let description = host.read_text(folder.join("node_desc")).unwrap_or_default();
    let [rxe, siw] = SOFTWARE_DEVICE_NAMES;
    description == rxe || description.starts_with(siw) || host.exists(folder.join("parent"))
}

/// True if a module for RDMA on this driver is loaded: one that uses the driver's module and `ib_core`, as
/// `mlx5_ib` does.
pub(super) fn has_rdma_driver(host: &Host, function: &Path) -> bool {
    let Some(module) = host.link_name(function.join("driver/module")) else { return false };
    let users_of = |module: &str| host.entry_names(format!("/sys/module/{module}/holders"));
    let users_of_rdma = users_of("ib_core");
    users_of(&module).iter().any(|name| users_of_rdma.contains(name))
}

// === impl RdmaDevice ===

impl RdmaDevice {
    fn read(host: &Host, ports: &mut PortReader, function: &Path, name: String) -> Self {
        let port_report = ports.read(host, folder(function, &name));
        let class_folders = |class: &str| {
            let class = function.join(class);
            let entries = host.entry_names(&class).into_iter().map(|entry| class.join(entry));
            let belongs_to_device =
                |entry: &PathBuf| host.read_text(entry.join("ibdev")).as_deref() == Some(&name);
            entries.filter(belongs_to_device).collect::<Vec<_>>()
        };
        let folders =
            class_folders("infiniband_verbs").into_iter().chain(class_folders("infiniband_mad"));
        let nodes = folders.filter_map(|folder| node(host, &folder)).collect();
        Self { name, port_report, nodes }
    }

    pub(super) fn is_infiniband(&self) -> bool {
        let has_infiniband_link = |port: &Port| port.link_layer.as_deref() == Some("InfiniBand");
        self.port_report.ports.first().is_some_and(has_infiniband_link)
    }

    pub(super) fn has_node(&self, kind: RdmaNode) -> bool {
        self.nodes.iter().any(|(node_kind, _)| *node_kind == kind)
    }
}

/// Kind and node of a folder; old kernels lack `uevent` for some.
fn node(host: &Host, folder: &Path) -> Option<(RdmaNode, DeviceNode)> {
    let name = folder.file_name()?.to_str()?;
    let kind = match name.trim_end_matches(|letter: char| letter.is_ascii_digit()) {
        "uverbs" => RdmaNode::Uverbs,
        "umad" => RdmaNode::Umad,
        "issm" => RdmaNode::Issm,
        _ => return None,
    };
    Some((kind, host.node_or(folder, Path::new("/dev/infiniband").join(name))))
}

// === impl RdmaNetns ===

impl RdmaNetns {
    pub(super) fn read(host: &Host) -> Self {
        match host.read_text(NETNS_MODE).as_deref() {
            Some("Y" | "1") => Self::Shared,
            Some("N" | "0") => Self::Exclusive,
            _ => Self::Unknown,
        }
    }

    pub(super) fn name(self) -> Option<&'static str> {
        match self {
            Self::Shared => Some("shared"),
            Self::Exclusive => Some("exclusive"),
            Self::Unknown => None,
        }
    }
}
