//! What the kernel's graphics subsystem made of a device: a node to drive screens, a node to compute.

use std::path::Path;

use windlass_core::device::DeviceNode;
use windlass_host::{FoundNode, Host};

/// The class of such nodes.
const DRM: &str = "drm";

/// What the name of a node to compute with begins with.
const RENDER: &str = "renderD";

/// The nodes of a device, given by its folder. Nodes that only set screen modes, `controlD64` of old
/// kernels, are nobody's.
pub(super) fn nodes(host: &Host, folder: &Path) -> Vec<DeviceNode> {
    let is_meant = |found: &FoundNode| {
        found.class == DRM && (found.name.starts_with("card") || found.name.starts_with(RENDER))
    };
    host.nodes_of(folder).into_iter().filter(is_meant).map(|found| found.node).collect()
}

/// Whether a node is one to compute with.
pub(super) fn is_render(node: &DeviceNode) -> bool {
    let name = node.path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.starts_with(RENDER))
}
