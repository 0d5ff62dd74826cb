//! Presence of device nodes: they exist and still belong to their device.
//!
//! The check runs at each reconcile, at each allocation, and for each claim, so that a device is offered only if its
//! allocation would succeed.

use std::path::PathBuf;

use windlass_core::device::DeviceNode;

use crate::Roots;

/// Reason why a device's nodes cannot be allocated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Absence {
    /// A node is missing.
    #[error("device node {} is missing on this node; is the driver loaded?", .0.display())]
    Missing(PathBuf),
    /// The node no longer belongs to the device.
    #[error("{0}")]
    WrongDevice(String),
}

/// Checks all nodes in `/dev` and sysfs, which the kernel serves from memory.
pub fn check<'a>(
    roots: &Roots,
    nodes: impl IntoIterator<Item = &'a DeviceNode>,
) -> Result<(), Absence> {
    nodes.into_iter().try_for_each(|node| {
        if !roots.dev.exists(&node.path) {
            return Err(Absence::Missing(node.path.clone()));
        }
        roots.host.check_node(node).map_err(Absence::WrongDevice)
    })
}
