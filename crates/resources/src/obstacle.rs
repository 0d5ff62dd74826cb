//! Obstacles: reasons why a healthy, free device cannot be allocated to a claim.

use std::collections::BTreeMap;

use windlass_core::device::DeviceId;

/// Reason why a healthy device cannot be allocated to a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// The kind, for a taint.
    pub kind: ObstacleKind,
    /// The reason for an operator.
    pub reason: String,
}

/// Kinds of obstacles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObstacleKind {
    /// The device's CDI document cannot be written.
    Document,
    /// A required channel of the NVLink fabric is missing.
    ImexChannel,
    /// A device node is missing or belongs to another device.
    DeviceNode,
    /// Several nodes reach the device, and this node does not hold its Lease.
    Lease,
}

/// Obstacles by device.
pub type Obstacles = BTreeMap<DeviceId, Obstacle>;

// === impl ObstacleKind ===

impl ObstacleKind {
    /// The kind as the value of a taint.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Document => "cdi-document",
            Self::ImexChannel => "imex-channel",
            Self::DeviceNode => "device-node",
            Self::Lease => "lease",
        }
    }
}
