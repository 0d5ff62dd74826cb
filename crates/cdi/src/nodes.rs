//! Device nodes of a device, and those that all devices of a kind share.

use std::path::Path;

use windlass_core::{
    cdi::{ContainerEdits, DeviceNode, Kind, Mount},
    device::{self, Device, DeviceKind},
    pci::PciAddress,
};
use windlass_discovery::PROFILE;
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

/// What the profile of a MIG instance that can draw has in its name.
const GRAPHICS: &str = "gfx";

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
    let graphics = device.place.pci.filter(|_| draws(device));
    let graphics_nodes = graphics.map(|address| graphics_nodes(roots, address));
    let graphics_nodes = graphics_nodes.unwrap_or_default();
    let own = device.nodes.iter();
    let all: Vec<_> = own.clone().chain(&graphics_nodes).collect();
    let links = device.place.pci.iter().flat_map(|address| links(roots, *address, &all));
    let hook = toolkit.and_then(|toolkit| toolkit.links(links));
    let grouped = own.clone().filter(|node| !is_graphics(&node.path));
    let mut groups: Vec<_> =
        grouped.filter_map(|node| roots.dev.needed_group(&node.path)).collect();
    groups.sort_unstable();
    groups.dedup();
    ContainerEdits {
        device_nodes: own
            .map(|own| of_its_own(roots, own))
            .chain(graphics_nodes.iter().map(|own| node(roots, &own.path)))
            .collect(),
        mounts: device.extras.mounts.iter().map(|it| mount(roots, it)).collect(),
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

/// Of MIG instances only those made for it can draw.
fn draws(device: &Device) -> bool {
    match device.kind {
        _ if !device.is_nvidia() => false,
        DeviceKind::Gpu => true,
        DeviceKind::Mig => {
            let profile = device.attributes.get(&PROFILE).map(ToString::to_string);
            profile.is_some_and(|profile| profile.contains(GRAPHICS))
        }
        DeviceKind::Nic | DeviceKind::Fpga | DeviceKind::Nvme | DeviceKind::Other => false,
    }
}

fn is_graphics(path: &Path) -> bool {
    path.starts_with(DRI) || path == Path::new(KFD)
}

fn graphics_nodes(roots: &Roots, address: PciAddress) -> Vec<device::DeviceNode> {
    let names = roots.host.names(format!("/sys/bus/pci/devices/{address}/drm"));
    let is_node = |name: &String| name.starts_with("card") || name.starts_with("renderD");
    let paths = names.into_iter().filter(is_node).map(|name| Path::new(DRI).join(name));
    paths.filter(|path| roots.dev.has(path)).map(device::DeviceNode::new).collect()
}

/// The names by PCI address, as what they say in the container and where they are.
fn links(roots: &Roots, address: PciAddress, nodes: &[&device::DeviceNode]) -> Vec<String> {
    let paths = ["card", "render"].map(|role| format!("{DRI}/by-path/pci-{address}-{role}"));
    let link = |path: &String| {
        let real = roots.dev.real(path)?;
        let node = nodes.iter().find(|node| node.path == real)?;
        Some(format!("../{}::{path}", node.inside().file_name()?.to_str()?))
    };
    paths.iter().filter_map(link).collect()
}
