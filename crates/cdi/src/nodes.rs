//! Device nodes of one device, and those that all NVIDIA GPUs share.

use std::path::{Path, PathBuf};

use windlass_core::{
    cdi::{ContainerEdits, SpecMount as Mount, SpecNode as DeviceNode},
    device::{self, Device},
};
use windlass_host::Roots;

use super::toolkit::Toolkit;

/// Nodes of NVIDIA's driver that belong to no GPU. Every program needs the first, CUDA the second,
/// profilers the third, displays the last.
pub const NVIDIA_NODES: [&str; 4] =
    ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"];

/// Folder of the kernel's graphics nodes.
const DRI: &str = "/dev/dri";

/// Compute node of AMD's GPUs.
const KFD: &str = "/dev/kfd";

/// Edits for one device.
///
/// Where an administrator restricts a driver's own nodes, a container that does not run as root needs their group.
/// Groups of graphics nodes and of AMD's compute node are not added: nearly every host has them, and groups raise the
/// document to a CDI version that containerd 1.7 may not know.
pub(super) fn device_edits(
    roots: &Roots,
    device: &Device,
    toolkit: Option<&Toolkit>,
) -> ContainerEdits {
    let (nodes, extras) = (&device.nodes, &device.extras);
    let links = extras.links.iter().filter_map(|(name, node)| link(nodes, name, node));
    let hook = toolkit.and_then(|toolkit| toolkit.symlink_hook(links));
    let grouped_nodes = nodes.iter().filter(|node| !is_graphics(&node.path));
    let mut groups: Vec<_> =
        grouped_nodes.filter_map(|node| roots.dev.needed_group(&node.path)).collect();
    groups.sort_unstable();
    groups.dedup();
    ContainerEdits {
        device_nodes: nodes
            .iter()
            .map(|device_node| container_node(roots, device_node))
            .chain(extras.nodes.iter().map(|path| node(roots, path)))
            .collect(),
        mounts: extras.mounts.iter().map(|device_mount| mount(roots, device_mount)).collect(),
        hooks: hook.into_iter().collect(),
        additional_gids: groups,
        ..ContainerEdits::default()
    }
}

/// Nodes of NVIDIA's driver that exist on this host.
pub(super) fn nvidia_driver_nodes(roots: &Roots) -> Vec<DeviceNode> {
    let existing_nodes = NVIDIA_NODES.iter().filter(|node| roots.dev.exists(node));
    existing_nodes.map(|path| node(roots, Path::new(path))).collect()
}

/// A node with the path in the container and the access that its source specifies.
fn container_node(roots: &Roots, node: &device::DeviceNode) -> DeviceNode {
    let path_on_node = roots.dev.path_on_node(&node.path);
    let container_path = node.container_path();
    DeviceNode {
        host_path: (path_on_node != *container_path).then_some(path_on_node),
        permissions: Some(node.access.as_str().to_owned()),
        ..DeviceNode::new(container_path)
    }
}

fn mount(roots: &Roots, mount: &device::Mount) -> Mount {
    Mount::bind(roots.host.path_on_node(&mount.host), &mount.container, mount.writable)
}

/// A node at the same path in the container as on the node.
pub(super) fn node(roots: &Roots, path: &Path) -> DeviceNode {
    let path_on_node = roots.dev.path_on_node(path);
    DeviceNode {
        host_path: (path_on_node != path).then_some(path_on_node),
        ..DeviceNode::new(path)
    }
}

fn is_graphics(path: &Path) -> bool {
    path.starts_with(DRI) || path == Path::new(KFD)
}

/// A symlink to a node, in the hook's form `target::link`.
fn link(nodes: &[device::DeviceNode], name: &Path, node: &PathBuf) -> Option<String> {
    let device_node = nodes.iter().find(|device_node| device_node.path == *node);
    let container_path = device_node.map_or(node, device::DeviceNode::container_path);
    Some(format!("../{}::{}", container_path.file_name()?.to_str()?, name.display()))
}
