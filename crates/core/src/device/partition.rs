//! A MIG partition of a GPU: what could be cut out of it, and where.

use std::{fmt, ops::Range, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::DeviceId;
use crate::attribute::Capacities;

/// What the driver calls a way to cut: `1g.10gb`, `1g.10gb+me`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MigProfileName(Arc<str>);

/// A place on a GPU for an instance of a profile, whether one stands there or not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Partition {
    /// The whole GPU.
    pub gpu: DeviceId,
    /// What the driver calls the profile.
    pub profile: MigProfileName,
    /// The driver's number for the profile, which differs between cards.
    pub profile_id: u32,
    /// The first memory slice.
    pub start: u32,
    /// How many memory slices it takes.
    pub size: u32,
}

/// A partition that a GPU could be cut to, and what a container would have of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PossiblePartition {
    /// Where it would stand.
    pub partition: Partition,
    /// Memory, multiprocessors and engines, under the names that a device's capacities have.
    pub capacity: Capacities,
}

// === impl MigProfileName ===

impl MigProfileName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for MigProfileName {
    fn from(name: &str) -> Self {
        Self(name.into())
    }
}

impl fmt::Display for MigProfileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl Serialize for MigProfileName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for MigProfileName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(String::deserialize(deserializer)?.into()))
    }
}

// === impl Partition ===

impl Partition {
    /// The name of the place, by which it is held whether an instance stands there or not:
    /// `GPU-…:mig-19-0`. A profile has one size.
    pub fn id(&self) -> DeviceId {
        DeviceId(format!("{}:mig-{}-{}", self.gpu, self.profile_id, self.start).into())
    }

    /// The memory slices that it takes.
    pub fn slices(&self) -> Range<u32> {
        self.start..self.start.saturating_add(self.size)
    }

    /// Whether the two cannot stand side by side, as far as memory goes.
    pub fn overlaps(&self, other: &Self) -> bool {
        let (one, two) = (self.slices(), other.slices());
        one.start < two.end && two.start < one.end && self.gpu == other.gpu
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

    fn on(gpu: &str, start: u32, size: u32) -> Partition {
        let gpu = gpu.parse().expect("an id");
        Partition { gpu, profile: "3g.40gb".into(), profile_id: 9, start, size }
    }

    #[test]
    fn partitions_overlap_where_they_share_a_memory_slice_of_one_gpu() {
        let half = on("GPU-a", 0, 4);
        for (other, expected) in [
            (on("GPU-a", 3, 1), true),
            (on("GPU-a", 0, 8), true),
            (on("GPU-a", 4, 4), false),
            (on("GPU-b", 0, 4), false),
        ] {
            assert_eq!(half.overlaps(&other), expected, "{other}");
            assert_eq!(other.overlaps(&half), expected, "{other}");
        }
    }

    #[test]
    fn a_partition_says_where_it_stands() {
        assert_eq!(on("GPU-a", 4, 4).to_string(), "3g.40gb at memory slices 4-7 of GPU-a");
        assert_eq!(on("GPU-a", 4, 1).to_string(), "3g.40gb at memory slice 4 of GPU-a");
    }
}
