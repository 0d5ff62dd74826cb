//! vDPA devices: virtio in hardware.

use std::{collections::BTreeMap, path::Path};

use windlass_core::device::DeviceNode;
use windlass_host::{Host, entry_limits::EntryLimits};

use super::function::MAX_LISTED;

/// A vDPA device.
#[derive(Debug)]
pub(super) struct Vdpa {
    /// `vdpa0`, or a name that its creator chose.
    pub(super) name: String,
    pub(super) kind: VdpaKind,
}

/// Driver of a vDPA device, which decides the user of the device.
#[derive(Debug)]
pub(super) enum VdpaKind {
    /// `vhost_vdpa`: programs and virtual machines use the device through this node.
    Vhost(DeviceNode),
    /// `virtio_vdpa`: the kernel uses the device as a network interface.
    Virtio,
}

pub(super) const DEVICES: &str = "/sys/bus/vdpa/devices";

/// Names of vDPA devices by function or subfunction.
#[derive(Debug, Default)]
pub(super) struct VdpaList(BTreeMap<String, Vec<String>>);

// === impl VdpaList ===

impl VdpaList {
    /// Reads the list once for all functions.
    pub(super) fn read(host: &Host, limits: &mut EntryLimits) -> Self {
        let mut list = Self::default();
        for name in limits.entry_names(host, DEVICES, MAX_LISTED) {
            let link = host.read_link(Path::new(DEVICES).join(&name)).unwrap_or_default();
            if let Some(function) = link.rsplit('/').nth(1) {
                list.0.entry(function.to_owned()).or_default().push(name);
            }
        }
        list
    }

    /// vDPA devices of a function.
    pub(super) fn of_device(&self, host: &Host, folder: &Path) -> Vec<Vdpa> {
        let function = folder.file_name().and_then(|name| name.to_str());
        let names = function.and_then(|name| self.0.get(name)).into_iter().flatten();
        names.filter_map(|name| read(host, folder, name.clone())).collect()
    }
}

fn read(host: &Host, function: &Path, name: String) -> Option<Vdpa> {
    let folder = function.join(&name);
    let kind = match host.link_name(folder.join("driver"))?.as_str() {
        "virtio_vdpa" => VdpaKind::Virtio,
        "vhost_vdpa" => {
            let is_node = |child: &String| child.starts_with("vhost-vdpa-");
            let child = host.entry_names(&folder).into_iter().find(is_node)?;
            VdpaKind::Vhost(host.node_or(&folder.join(&child), Path::new("/dev").join(&child)))
        }
        _ => return None,
    };
    Some(Vdpa { name, kind })
}

// === impl VdpaKind ===

impl VdpaKind {
    /// Name in device plugins and CNI plugins.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Vhost(_) => "vhost",
            Self::Virtio => "virtio",
        }
    }
}
