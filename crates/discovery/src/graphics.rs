//! What the kernel's graphics subsystem made of a device: a node to drive screens, a node to compute.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use windlass_core::{
    device::{Device, DeviceNode, Extras},
    pci::PciAddress,
};
use windlass_host::{FoundNode, Host, Roots};

/// The class of such nodes.
const DRM: &str = "drm";

/// Where the nodes are.
const DRI: &str = "/dev/dri";

/// What the name of a node to drive screens with begins with.
const CARD: &str = "card";

/// What the name of a node to compute with begins with.
const RENDER: &str = "renderD";

/// The nodes of a device, given by its folder. Nodes that only set screen modes, `controlD64` of old
/// kernels, are nobody's.
pub(super) fn nodes(host: &Host, folder: &Path) -> Vec<DeviceNode> {
    let is_meant = |found: &FoundNode| found.class == DRM && is_meant_name(&found.name);
    host.nodes_of(folder).into_iter().filter(is_meant).map(|found| found.node).collect()
}

/// What a PCI function has for graphics whose own driver tells nothing of that: nodes that are there, and their names.
pub(super) fn of_function(roots: &Roots, address: PciAddress) -> Extras {
    let names = roots.host.names(format!("/sys/bus/pci/devices/{address}/drm")).into_iter();
    let paths = names.filter(|name| is_meant_name(name)).map(|name| Path::new(DRI).join(name));
    let nodes: Vec<_> = paths.filter(|path| roots.dev.has(path)).collect();
    let links = links(&roots.dev, address, |path| nodes.contains(path));
    Extras { nodes, links, ..Extras::default() }
}

/// Tells a device the other names of its nodes, if they are for graphics.
pub(super) fn name(host: &Host, device: &mut Device) {
    let Device { place, nodes, extras, .. } = device;
    if let Some(address) = place.pci
        && nodes.iter().any(|node| node.path.starts_with(DRI))
    {
        extras.links = links(host, address, |path| nodes.iter().any(|node| node.path == *path));
    }
}

/// The names by PCI address, each with its node, of a device with these nodes.
fn links(
    host: &Host,
    address: PciAddress,
    is_own: impl Fn(&PathBuf) -> bool,
) -> BTreeMap<PathBuf, PathBuf> {
    let names = ["card", "render"].map(|role| format!("{DRI}/by-path/pci-{address}-{role}"));
    let link = |name: String| Some((name.clone().into(), host.real(name).filter(&is_own)?));
    names.into_iter().filter_map(link).collect()
}

fn is_meant_name(name: &str) -> bool {
    name.starts_with(CARD) || name.starts_with(RENDER)
}

/// Whether a node is one to compute with.
pub(super) fn is_render(node: &DeviceNode) -> bool {
    let name = node.path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.starts_with(RENDER))
}
