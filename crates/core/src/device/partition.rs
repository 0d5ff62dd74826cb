//! MIG partitions: profiles and placements on a GPU.

use std::{fmt, ops::Range, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize};

use super::DeviceId;
use crate::attribute::Capacities;

/// MIG profile name of the driver: `1g.10gb`, `1g.10gb+me`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MigProfileName(Arc<str>);

/// A placement of a profile on a GPU, with or without an instance there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Partition {
    /// The GPU.
    pub gpu: DeviceId,
    /// Profile name.
    pub profile: MigProfileName,
    /// Profile number of the driver; it differs between GPU models.
    pub profile_id: u32,
    /// First memory slice.
    pub start: u32,
    /// Number of memory slices.
    pub size: u32,
}

/// A partition that a GPU can have, with its capacity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PossiblePartition {
    /// Placement.
    pub partition: Partition,
    /// Memory, multiprocessors and engines, under the names of device capacities.
    pub capacity: Capacities,
}

show_text!(MigProfileName);

// === impl MigProfileName ===

impl From<&str> for MigProfileName {
    fn from(name: &str) -> Self {
        Self(name.into())
    }
}

impl<'de> Deserialize<'de> for MigProfileName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(String::deserialize(deserializer)?.into()))
    }
}

// === impl Partition ===

impl Partition {
    /// Id of the placement, `GPU-…:mig-19-0`, valid with or without an instance. Profile and start suffice: a
    /// profile has one size.
    pub fn id(&self) -> DeviceId {
        DeviceId(format!("{}:mig-{}-{}", self.gpu, self.profile_id, self.start).into())
    }

    /// Memory slices that the partition occupies.
    pub fn slices(&self) -> Range<u32> {
        self.start..self.start.saturating_add(self.size)
    }

    /// True if both partitions need a common memory slice of one GPU.
    pub fn overlaps(&self, other: &Self) -> bool {
        let (slices, other_slices) = (self.slices(), other.slices());
        slices.start < other_slices.end && other_slices.start < slices.end && self.gpu == other.gpu
    }
}

impl fmt::Display for Partition {
    /// `3g.40gb at memory slices 0-3 of GPU-…`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { gpu, profile, start, size, .. } = self;
        match size {
            0 | 1 => write!(f, "{profile} at memory slice {start} of {gpu}"),
            _ => {
                let last = self.slices().end - 1;
                write!(f, "{profile} at memory slices {start}-{last} of {gpu}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partition(gpu: &str, start: u32, size: u32) -> Partition {
        let gpu = gpu.parse().expect("an id");
        Partition { gpu, profile: "3g.40gb".into(), profile_id: 9, start, size }
    }

    #[test]
    fn partitions_overlap_where_they_share_a_memory_slice_of_one_gpu() {
        let half = partition("GPU-a", 0, 4);
        for (other, expected) in [
            (partition("GPU-a", 3, 1), true),
            (partition("GPU-a", 0, 8), true),
            (partition("GPU-a", 4, 4), false),
            (partition("GPU-b", 0, 4), false),
        ] {
            assert_eq!(half.overlaps(&other), expected, "{other}");
            assert_eq!(other.overlaps(&half), expected, "{other}");
        }
    }

    #[test]
    fn a_partition_displays_its_placement() {
        assert_eq!(partition("GPU-a", 4, 4).to_string(), "3g.40gb at memory slices 4-7 of GPU-a");
        assert_eq!(partition("GPU-a", 4, 1).to_string(), "3g.40gb at memory slice 4 of GPU-a");
    }
}
