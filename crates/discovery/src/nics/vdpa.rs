//! vDPA devices: virtio in hardware, made of a function.

use std::{collections::BTreeMap, path::Path};

use windlass_core::device::DeviceNode;
use windlass_host::Host;

use super::function::MOST_LISTED;
use crate::crowds::Crowds;

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

pub(super) const DEVICES: &str = "/sys/bus/vdpa/devices";

/// The names of vDPA devices by the function or subfunction that each is made of.
#[derive(Debug, Default)]
pub(super) struct Listed(BTreeMap<String, Vec<String>>);

// === impl Listed ===

impl Listed {
    /// Reads the list once, for all functions.
    pub(super) fn read(host: &Host, crowds: &mut Crowds) -> Self {
        let mut listed = Self::default();
        for name in crowds.names(host, DEVICES, MOST_LISTED) {
            let link = host.link(Path::new(DEVICES).join(&name)).unwrap_or_default();
            if let Some(function) = link.rsplit('/').nth(1) {
                listed.0.entry(function.to_owned()).or_default().push(name);
            }
        }
        listed
    }

    /// The vDPA devices made of a function.
    pub(super) fn of_device(&self, host: &Host, folder: &Path) -> Vec<Vdpa> {
        let function = folder.file_name().and_then(|name| name.to_str());
        let its = function.and_then(|name| self.0.get(name)).into_iter().flatten();
        its.filter_map(|name| read(host, folder, name.clone())).collect()
    }
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
