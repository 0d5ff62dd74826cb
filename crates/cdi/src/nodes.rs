//! Device nodes of a device, and those that all devices of a kind share.

use std::path::{Path, PathBuf};

use windlass_core::{
    cdi::{ContainerEdits, Kind, SpecMount as Mount, SpecNode as DeviceNode},
    device::{self, Device},
};
use windlass_host::Roots;

use super::{GPU, toolkit::Toolkit};

/// Nodes of NVIDIA's driver that belong to no GPU. A program needs the first; CUDA needs the second,
/// profilers the third, display the last.
pub const NVIDIA_NODES: [&str; 4] =
    ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"];

/// Nodes of the kernel's graphics subsystem.
const DRI: &str = "/dev/dri";

/// The node that AMD's GPUs compute through.
const KFD: &str = "/dev/kfd";

/// What a device needs by itself.
///
/// Groups are added for the driver's own nodes only: without them an administrator who took the nodes
/// from others would lock out every container that does not run as root. The graphics nodes have a
/// group nearly everywhere, and AMD's compute node has the same; for them alone no document shall need a
/// version that containerd 1.7 may not know.
pub(super) fn of_device(
    roots: &Roots,
    device: &Device,
    toolkit: Option<&Toolkit>,
) -> ContainerEdits {
    let (own, extras) = (&device.nodes, &device.extras);
    let links = extras.links.iter().filter_map(|(name, node)| link(own, name, node));
    let hook = toolkit.and_then(|toolkit| toolkit.links(links));
    let grouped = own.iter().filter(|node| !is_graphics(&node.path));
    let mut groups: Vec<_> =
        grouped.filter_map(|node| roots.dev.needed_group(&node.path)).collect();
    groups.sort_unstable();
    groups.dedup();
    ContainerEdits {
        device_nodes: own
            .iter()
            .map(|own| of_its_own(roots, own))
            .chain(extras.nodes.iter().map(|path| node(roots, path)))
            .collect(),
        mounts: extras.mounts.iter().map(|it| mount(roots, it)).collect(),
        hooks: hook.into_iter().collect(),
        additional_gids: groups,
        ..ContainerEdits::default()
    }
}

/// The nodes that all devices of a kind share, as far as they are there. Other sources name theirs
/// with each device.
pub(super) fn shared(roots: &Roots, kind: &Kind) -> Vec<DeviceNode> {
    let nodes: &[_] = match kind {
        kind if *kind == GPU => &NVIDIA_NODES,
        _ => &[],
    };
    let present = nodes.iter().filter(|node| roots.dev.has(node));
    present.map(|path| node(roots, Path::new(path))).collect()
}

/// A node as its source wants a container to have it.
fn of_its_own(roots: &Roots, own: &device::DeviceNode) -> DeviceNode {
    let on_node = roots.dev.path_on_node(&own.path);
    let inside = own.inside();
    DeviceNode {
        host_path: (on_node != *inside).then_some(on_node),
        permissions: Some(own.access.letters().to_owned()),
        ..DeviceNode::new(inside)
    }
}

fn mount(roots: &Roots, mount: &device::Mount) -> Mount {
    Mount::bound(roots.host.path_on_node(&mount.host), &mount.container, mount.writable)
}

/// A node at its own path.
pub(super) fn node(roots: &Roots, path: &Path) -> DeviceNode {
    let on_node = roots.dev.path_on_node(path);
    DeviceNode { host_path: (on_node != path).then_some(on_node), ..DeviceNode::new(path) }
}

fn is_graphics(path: &Path) -> bool {
    path.starts_with(DRI) || path == Path::new(KFD)
}

/// Another name of a node, as what it says in the container and where it is.
fn link(nodes: &[device::DeviceNode], name: &Path, node: &PathBuf) -> Option<String> {
    let own = nodes.iter().find(|own| own.path == *node);
    let inside = own.map_or(node, device::DeviceNode::inside);
    Some(format!("../{}::{}", inside.file_name()?.to_str()?, name.display()))
}
