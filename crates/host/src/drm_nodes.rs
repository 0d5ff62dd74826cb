//! DRM devices of a GPU: display and render nodes.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use windlass_core::{
    device::{Device, DeviceNode, ExtraEdits},
    pci::PciAddress,
};

use crate::{FoundNode, Host, Roots};

/// Class of DRM nodes.
const DRM: &str = "drm";

/// Folder of DRM nodes.
const DRI: &str = "/dev/dri";

/// Prefix of display nodes.
const CARD: &str = "card";

/// Prefix of render nodes.
const RENDER: &str = "renderD";

/// DRM nodes of a device's folder. Skips mode-setting nodes, `controlD64` of old kernels.
pub fn nodes(host: &Host, folder: &Path) -> Vec<DeviceNode> {
    let is_drm_node = |found: &FoundNode| found.class == DRM && is_card_or_render_node(&found.name);
    host.nodes_of(folder).into_iter().filter(is_drm_node).map(|found| found.node).collect()
}

/// Existing DRM nodes of a PCI function and their links, for drivers that do not report DRM nodes.
pub fn edits_of_function(roots: &Roots, address: PciAddress) -> ExtraEdits {
    let names = roots.host.entry_names(format!("/sys/bus/pci/devices/{address}/drm")).into_iter();
    let paths =
        names.filter(|name| is_card_or_render_node(name)).map(|name| Path::new(DRI).join(name));
    let nodes: Vec<_> = paths.filter(|path| roots.dev.exists(path)).collect();
    let links = links(&roots.dev, address, |path| nodes.contains(path));
    ExtraEdits { nodes, links, ..ExtraEdits::default() }
}

/// Adds the links of DRM nodes below `by-path` to a device.
pub fn add_links(host: &Host, device: &mut Device) {
    let Device { place, nodes, extras, .. } = device;
    if let Some(address) = place.pci
        && nodes.iter().any(|node| node.path.starts_with(DRI))
    {
        extras.links = links(host, address, |path| nodes.iter().any(|node| node.path == *path));
    }
}

/// Links below `by-path` that are named after the PCI address and resolve to the device's own nodes.
fn links(
    host: &Host,
    address: PciAddress,
    is_own: impl Fn(&PathBuf) -> bool,
) -> BTreeMap<PathBuf, PathBuf> {
    let names = ["card", "render"].map(|role| format!("{DRI}/by-path/pci-{address}-{role}"));
    let link = |name: String| Some((name.clone().into(), host.resolve_link(name).filter(&is_own)?));
    names.into_iter().filter_map(link).collect()
}

fn is_card_or_render_node(name: &str) -> bool {
    name.starts_with(CARD) || name.starts_with(RENDER)
}

/// True for a render node.
pub fn is_render(node: &DeviceNode) -> bool {
    let name = node.path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.starts_with(RENDER))
}
