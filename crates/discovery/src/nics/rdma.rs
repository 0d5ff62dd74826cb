//! RDMA devices: their nodes, and the network namespaces that may use them.
//!
//! The devices of a function are those in its own folder. Names and GUIDs of interfaces are not asked: with
//! IP over InfiniBand the GUID of the node is not that of the port.

use std::path::{Path, PathBuf};

use windlass_config::RdmaNode;
use windlass_core::device::DeviceNode;
use windlass_host::Host;

use super::ports::{Port, PortReader, Said};

/// An RDMA device of a function.
#[derive(Debug)]
pub(super) struct RdmaDevice {
    /// `mlx5_0`
    pub(super) name: String,
    pub(super) said: Said,
    /// Its own nodes, as the driver has made them so far.
    pub(super) nodes: Vec<(RdmaNode, DeviceNode)>,
}

/// Which network namespaces an RDMA device works in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Networks {
    /// All of them.
    Shared,
    /// The one that it was moved into.
    Exclusive,
    /// The kernel does not say: it has no RDMA, or is too old for a choice, and shares.
    Unknown,
}

/// What software for RDMA calls itself, until somebody gives it another name: `rxe_register_device` and
/// `siw_device_create` in the kernel.
const SOFTWARE: [&str; 2] = ["rxe", "Software iWARP"];

const NETNS_MODE: &str = "/sys/module/ib_core/parameters/netns_mode";

/// The folder of an RDMA device of a function.
pub(super) fn folder(function: impl AsRef<Path>, name: &str) -> PathBuf {
    function.as_ref().join("infiniband").join(name)
}

/// The RDMA devices in the folder of a function.
pub(super) fn of_device(host: &Host, ports: &mut PortReader, function: &Path) -> Vec<RdmaDevice> {
    let mut names = host.names(function.join("infiniband"));
    names.retain(|name| !is_software(host, &folder(function, name)));
    names.sort_by_key(|name| (name.len(), name.clone()));
    names.into_iter().map(|name| RdmaDevice::read(host, ports, function, name)).collect()
}

/// Whether an RDMA device is a program that sends through any interface. Of `rxe` there is also a file that
/// says through which; no other driver has it.
pub(super) fn is_software(host: &Host, folder: &Path) -> bool {
    let called = host.text(folder.join("node_desc")).unwrap_or_default();
    let [rxe, siw] = SOFTWARE;
    called == rxe || called.starts_with(siw) || host.has(folder.join("parent"))
}

/// Whether a module is loaded that makes RDMA devices of the functions of a driver: one that is built on
/// the driver's module and on RDMA's, as `mlx5_ib` is.
pub(super) fn has_maker(host: &Host, function: &Path) -> bool {
    let Some(module) = host.link_name(function.join("driver/module")) else { return false };
    let on_top_of = |module: &str| host.names(format!("/sys/module/{module}/holders"));
    let of_rdma = on_top_of("ib_core");
    on_top_of(&module).iter().any(|name| of_rdma.contains(name))
}

// === impl RdmaDevice ===

impl RdmaDevice {
    fn read(host: &Host, ports: &mut PortReader, function: &Path, name: String) -> Self {
        let said = ports.read(host, folder(function, &name));
        let own = |class: &str| {
            let class = function.join(class);
            let entries = host.names(&class).into_iter().map(|entry| class.join(entry));
            let is_own = |entry: &PathBuf| host.text(entry.join("ibdev")).as_deref() == Some(&name);
            entries.filter(is_own).collect::<Vec<_>>()
        };
        let folders = own("infiniband_verbs").into_iter().chain(own("infiniband_mad"));
        let nodes = folders.filter_map(|folder| node(host, &folder)).collect();
        Self { name, said, nodes }
    }

    pub(super) fn is_infiniband(&self) -> bool {
        let is_it = |port: &Port| port.link_layer.as_deref() == Some("InfiniBand");
        self.said.ports.first().is_some_and(is_it)
    }

    pub(super) fn has(&self, kind: RdmaNode) -> bool {
        self.nodes.iter().any(|(known, _)| *known == kind)
    }
}

/// What sort of node a folder tells of, and the node; a kernel of old has no `uevent` for some.
fn node(host: &Host, folder: &Path) -> Option<(RdmaNode, DeviceNode)> {
    let name = folder.file_name()?.to_str()?;
    let kind = match name.trim_end_matches(|letter: char| letter.is_ascii_digit()) {
        "uverbs" => RdmaNode::Uverbs,
        "umad" => RdmaNode::Umad,
        "issm" => RdmaNode::Issm,
        _ => return None,
    };
    let usual = || DeviceNode::new(Path::new("/dev/infiniband").join(name));
    Some((kind, host.node_at(folder).map_or_else(usual, |found| found.node)))
}

// === impl Networks ===

impl Networks {
    pub(super) fn read(host: &Host) -> Self {
        match host.text(NETNS_MODE).as_deref() {
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
