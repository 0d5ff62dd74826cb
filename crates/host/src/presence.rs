//! Device nodes that containers are to get: there, and still those of their device.
//!
//! The same question at each regular look, before a device is given to a container, and before one is given to a claim:
//! what would be refused then is not offered.

use std::path::PathBuf;

use windlass_core::device::DeviceNode;

use crate::Roots;

/// Why a device's nodes cannot be handed out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Absence {
    /// No node is there.
    #[error("device node {} is missing on this node; is the driver loaded?", .0.display())]
    Missing(PathBuf),
    /// Numbers of nodes change while the inventory is on its way: the kernel has the last word.
    #[error("{0}")]
    Another(String),
}

/// Whether all nodes are where the container will look for them. Asks `/dev` and sysfs, which answer from memory.
pub fn check<'a>(
    roots: &Roots,
    nodes: impl IntoIterator<Item = &'a DeviceNode>,
) -> Result<(), Absence> {
    nodes.into_iter().try_for_each(|node| {
        if !roots.dev.has(&node.path) {
            return Err(Absence::Missing(node.path.clone()));
        }
        roots.host.proves(node).map_err(Absence::Another)
    })
}
