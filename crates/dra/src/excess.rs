//! Claims that use more memory of a GPU than their share.

use std::collections::BTreeMap;

use windlass_core::device::DeviceId;

/// Memory of a GPU that a claim uses above its share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryExcess {
    /// Memory in use when the excess was last acted against, in MiB, of all containers that count together.
    pub used_mib: u64,
    /// Memory that they have, in MiB.
    pub limit_mib: u64,
}

/// Excesses by the UID of the claim and the GPU.
pub type MemoryExcesses = BTreeMap<(String, DeviceId), MemoryExcess>;
