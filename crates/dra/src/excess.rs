//! Claims that use more memory of a GPU than their share.

use std::collections::BTreeMap;

use windlass_core::device::DeviceId;

/// Memory of a GPU that a claim uses above its share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryExcess {
    /// Memory in use at the last action against the excess, in MiB, of all containers that count
    /// together: those of pods with a claim in common.
    pub used_mib: u64,
    /// Limit of these holders together, in MiB.
    pub limit_mib: u64,
}

/// Excesses by the UID of the claim and the GPU.
pub type MemoryExcesses = BTreeMap<(String, DeviceId), MemoryExcess>;
