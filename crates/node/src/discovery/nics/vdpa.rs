//! vDPA devices: virtio in hardware, made of a function.

use std::path::Path;

use windlass_core::device::DeviceNode;

use crate::host::Host;

/// A vDPA device.
#[derive(Debug)]
pub(super) struct Vdpa {
    /// `vdpa0`, or what its maker called it.
    pub(super) name: String,
    pub(super) kind: VdpaKind,
}

/// What serves a vDPA device.
#[derive(Debug)]
pub(super) enum VdpaKind {
    /// Programs and virtual machines, through this node.
    Vhost(DeviceNode),
    /// The kernel, which makes a network interface of it.
    Virtio,
}

const DEVICES: &str = "/sys/bus/vdpa/devices";

/// The vDPA devices made of a function.
pub(super) fn of_device(host: &Host, folder: &Path) -> Vec<Vdpa> {
    let function = folder.file_name().and_then(|name| name.to_str());
    let is_its = |name: &String| {
        let link = host.link(Path::new(DEVICES).join(name)).unwrap_or_default();
        link.rsplit('/').nth(1) == function
    };
    let its = host.names(DEVICES).into_iter().filter(is_its);
    its.filter_map(|name| read(host, folder, name)).collect()
}

fn read(host: &Host, function: &Path, name: String) -> Option<Vdpa> {
    let folder = function.join(&name);
    let kind = match host.link_name(folder.join("driver"))?.as_str() {
        "virtio_vdpa" => VdpaKind::Virtio,
        "vhost_vdpa" => {
            let is_node = |child: &String| child.starts_with("vhost-vdpa-");
            let child = host.names(&folder).into_iter().find(is_node)?;
            let usual = || DeviceNode::new(Path::new("/dev").join(&child));
            VdpaKind::Vhost(host.node_at(&folder.join(&child)).map_or_else(usual, |it| it.node))
        }
        _ => return None,
    };
    Some(Vdpa { name, kind })
}

// === impl VdpaKind ===

impl VdpaKind {
    /// As device plugins and CNI plugins call it.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Vhost(_) => "vhost",
            Self::Virtio => "virtio",
        }
    }
}
