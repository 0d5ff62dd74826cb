//! Device nodes of a function that containers get, by its driver.

use std::path::Path;

use windlass_config::{MissingNodes, RdmaNode};
use windlass_core::{device::DeviceNode, health::Reason};
use windlass_host::is_vfio;

use super::{
    NicScan,
    function::Function,
    rdma::RdmaDevice,
    vdpa::VdpaKind,
    vfio::{self, Vfio},
};

/// Device nodes of a function, with reasons against allocation.
#[derive(Debug, Default)]
pub(super) struct NodeSet {
    pub(super) nodes: Vec<DeviceNode>,
    /// Missing node that may appear later, for example after a module is loaded.
    pub(super) missing: Option<(Reason, String)>,
    /// Reason to withhold the function.
    pub(super) withheld: Option<String>,
}

/// Node of the RDMA connection manager, common to all RDMA devices.
const RDMA_CM: &str = "/dev/infiniband/rdma_cm";

/// Nodes through which virtual machines use the host's network stack.
const VHOST_NET: [&str; 2] = ["/dev/vhost-net", "/dev/net/tun"];

/// A dummy driver that reserves a function.
const STUB: &str = "pci-stub";

impl NicScan<'_> {
    /// Nodes by driver. Interfaces have none: a CNI plugin moves them.
    pub(super) fn node_set(&self, function: &Function) -> NodeSet {
        let mut set = match function.driver.as_deref() {
            Some(STUB) => NodeSet::withheld("pci-stub keeps it for a virtual machine"),
            Some(driver) if is_vfio(driver) => {
                let Vfio { nodes, withheld } = vfio::read_vfio(self.host, &function.folder);
                NodeSet { nodes, withheld, missing: None }
            }
            Some(driver) if vfio::is_uio(driver) => NodeSet {
                nodes: vfio::uio_nodes(self.host, &function.folder),
                ..NodeSet::default()
            },
            _ => self.kernel_driver_nodes(function),
        };
        if self.policy.vhost_net {
            self.add_shared(&mut set, &VHOST_NET);
        }
        let missing = set.nodes.iter().find(|node| !self.host.exists(&node.path));
        let missing = missing.map(|node| missing_file(&node.path));
        set.missing = set.missing.or(missing);
        set
    }

    fn kernel_driver_nodes(&self, function: &Function) -> NodeSet {
        let mut set = NodeSet::default();
        for rdma in &function.rdma {
            set.missing = set.missing.or_else(|| self.missing_rdma_node(rdma));
            let configured = rdma.nodes.iter().filter(|(kind, node)| {
                self.is_configured(*kind)
                    && (!self.is_optional(*kind) || self.host.exists(&node.path))
            });
            set.nodes.extend(configured.map(|(_, node)| node.clone()));
        }
        if !function.rdma.is_empty() && self.is_configured(RdmaNode::RdmaCm) {
            self.add_shared(&mut set, &[RDMA_CM]);
        }
        set.nodes.extend(function.vdpa.iter().filter_map(|vdpa| match &vdpa.kind {
            VdpaKind::Vhost(node) => Some(node.clone()),
            VdpaKind::Virtio => None,
        }));
        set
    }

    /// Adds nodes that all devices share. If one of them is missing, adds none, unless the configuration awaits
    /// missing nodes.
    fn add_shared(&self, set: &mut NodeSet, paths: &[&str]) {
        if self.awaits_nodes() || paths.iter().all(|path| self.host.exists(path)) {
            set.nodes.extend(paths.iter().map(DeviceNode::shared));
        }
    }

    fn is_configured(&self, kind: RdmaNode) -> bool {
        self.policy.rdma_nodes.contains(&kind)
    }

    fn awaits_nodes(&self) -> bool {
        self.policy.missing_nodes == MissingNodes::Awaited
    }

    fn is_optional(&self, kind: RdmaNode) -> bool {
        !self.awaits_nodes() && kind != RdmaNode::Uverbs
    }

    /// Node that a loading driver has not created yet. `issm` is optional: only ports that may manage their
    /// subnet have it.
    fn missing_rdma_node(&self, rdma: &RdmaDevice) -> Option<(Reason, String)> {
        let required = [(RdmaNode::Uverbs, "uverbs"), (RdmaNode::Umad, "umad")];
        let is_required = |kind| self.is_configured(kind) && !self.is_optional(kind);
        let mut required = required.iter().filter(|(kind, _)| is_required(*kind));
        let (_, name) = required.find(|(kind, _)| !rdma.has_node(*kind))?;
        let detail = format!("{} has no {name} node yet: is ib_{name} loaded?", rdma.name);
        Some((Reason::NotReady, detail))
    }
}

fn missing_file(path: &Path) -> (Reason, String) {
    let (reason, module) = match path.to_str() {
        Some(RDMA_CM) => (Reason::NotReady, ": is rdma_ucm loaded?"),
        Some("/dev/vhost-net") => (Reason::NotReady, ": is vhost_net loaded?"),
        Some("/dev/net/tun") => (Reason::NotReady, ": is tun loaded?"),
        _ => (Reason::NodeMissing, ""),
    };
    (reason, format!("{} is not there{module}", path.display()))
}

// === impl NodeSet ===

impl NodeSet {
    fn withheld(reason: &str) -> Self {
        Self { withheld: Some(reason.to_owned()), ..Self::default() }
    }
}
