//! What is in the way of healthy devices, beside whoever has them.

use std::collections::BTreeMap;

use windlass_core::device::DeviceId;

/// What is in the way of a healthy device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// The sort, for a taint.
    pub sort: ObstacleSort,
    /// The reason in words.
    pub why: String,
}

/// What sort of obstacle it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObstacleSort {
    /// The CDI document that has the device cannot be written.
    Document,
    /// A channel of the NVLink fabric is required, and missing.
    ImexChannel,
    /// A node of the device is missing, or another device's by now.
    DeviceNode,
    /// Several nodes reach the device, and this one does not hold its lease.
    Lease,
}

/// The devices that claims are not to get, and what is in the way.
pub type Obstacles = BTreeMap<DeviceId, Obstacle>;

// === impl ObstacleSort ===

impl ObstacleSort {
    /// In one word, as the value of a taint.
    pub fn word(self) -> &'static str {
        match self {
            Self::Document => "cdi-document",
            Self::ImexChannel => "imex-channel",
            Self::DeviceNode => "device-node",
            Self::Lease => "lease",
        }
    }
}
