//! MIG: the shapes that a GPU can be cut into, and where the driver puts them.
//!
//! Shapes, profile ids and slices are those of A100, which later cards kept; see NVIDIA's MIG user
//! guide, "A100 MIG Profiles", and `nvidia-smi mig -lgip` and `-lgipp`.

use crate::card::{Card, MigCapability};

/// Memory slices of a GPU that can be partitioned.
pub const MEMORY_SLICES: u32 = 8;

/// Compute slices of a GPU that can be partitioned, and so its largest number of MIG devices.
pub const COMPUTE_SLICES: u32 = 7;

/// What the driver keeps of each instance's memory, so that `1g.5gb` has 4864 MiB.
const RESERVED_MIB: u64 = 256;

/// A GPU instance profile, before it is applied to a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// `NVML_GPU_INSTANCE_PROFILE_*`.
    pub nvml_profile: u32,
    /// What the driver calls the profile: the `ID` column of `nvidia-smi mig -lgip`.
    pub profile_id: u32,
    /// Compute slices.
    pub slices: u32,
    /// Memory slices, which are also the size of its placement.
    pub memory_slices: u32,
    /// Memory slices at which an instance may start.
    pub starts: &'static [u32],
    /// Video decoders.
    pub decoders: u32,
    /// JPEG engines, and as many optical flow engines.
    pub media: u32,
}

/// Every profile, smallest first.
pub const SHAPES: [Shape; 7] = [
    shape([0, 19], [1, 1], &[0, 1, 2, 3, 4, 5, 6], [0, 0]),
    shape([7, 20], [1, 1], &[0, 1, 2, 3, 4, 5, 6], [1, 1]),
    shape([9, 15], [1, 2], &[0, 2, 4, 6], [1, 0]),
    shape([1, 14], [2, 2], &[0, 2, 4], [1, 0]),
    shape([2, 9], [3, 4], &[0, 4], [2, 0]),
    shape([3, 5], [4, 4], &[0], [2, 0]),
    shape([4, 0], [7, 8], &[0], [5, 1]),
];

/// The driver's profile id of the one shape that takes all of a GPU's media engines.
const WITH_MEDIA_ENGINES: u32 = 20;

const fn shape(
    [nvml_profile, profile_id]: [u32; 2],
    [slices, memory_slices]: [u32; 2],
    starts: &'static [u32],
    [decoders, media]: [u32; 2],
) -> Shape {
    Shape { nvml_profile, profile_id, slices, memory_slices, starts, decoders, media }
}

// === impl Shape ===

impl Shape {
    /// The shape that a card calls `3g.20gb`.
    pub fn named(name: &str, capability: MigCapability) -> Option<Self> {
        SHAPES.into_iter().find(|shape| shape.name(capability) == name)
    }

    /// The shape with a driver's profile id.
    pub fn with_profile_id(id: u32) -> Option<Self> {
        SHAPES.into_iter().find(|shape| shape.profile_id == id)
    }

    /// The shape with an `NVML_GPU_INSTANCE_PROFILE_*`.
    pub fn with_nvml_profile(profile: u32) -> Option<Self> {
        SHAPES.into_iter().find(|shape| shape.nvml_profile == profile)
    }

    /// The name on a card, `3g.20gb`: memory slices in GB, halves rounded up.
    pub fn name(&self, capability: MigCapability) -> String {
        let gigabytes =
            (capability.memory_gb * self.memory_slices + MEMORY_SLICES / 2) / MEMORY_SLICES;
        let suffix = if self.profile_id == WITH_MEDIA_ENGINES { "+me" } else { "" };
        format!("{}g.{gigabytes}gb{suffix}", self.slices)
    }

    /// Memory that an instance has on a card.
    pub fn memory_mib(&self, card: &Card) -> u64 {
        card.memory_mib * u64::from(self.memory_slices) / u64::from(MEMORY_SLICES) - RESERVED_MIB
    }

    /// SMs that an instance has on a card.
    pub fn multiprocessors(&self, capability: MigCapability) -> u32 {
        self.slices * capability.multiprocessors
    }

    /// How many fit one GPU.
    pub fn most(&self) -> u32 {
        let places = u32::try_from(self.starts.len()).expect("a table of at most seven");
        if self.profile_id == WITH_MEDIA_ENGINES { 1 } else { places }
    }

    /// The first id that the driver gives to instances of this size: it keeps 0 for the whole GPU,
    /// 1 and 2 for halves, 3 to 6 for quarters, 7 to 14 for single slices.
    pub fn first_instance_id(&self) -> u32 {
        match self.memory_slices {
            1 => 7,
            2 => 3,
            4 => 1,
            _ => 0,
        }
    }
}

/// Puts instances side by side in the order given, each at the first start that is free, as the
/// driver does when no placement is asked for. `None` when one does not fit.
pub fn place(shapes: &[Shape]) -> Option<Vec<u32>> {
    let mut taken = 0u32;
    let put = |shape: &Shape| {
        let slices = |start: u32| ((1 << shape.memory_slices) - 1) << start;
        let start = *shape.starts.iter().find(|start| taken & slices(**start) == 0)?;
        taken |= slices(start);
        Some(start)
    };
    shapes.iter().map(put).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(memory_gb: u32) -> Vec<String> {
        let capability = MigCapability { memory_gb, multiprocessors: 14 };
        SHAPES.iter().map(|shape| shape.name(capability)).collect()
    }

    #[test]
    fn names_are_those_that_nvidia_prints_for_each_card() {
        let a100 = ["1g.5gb", "1g.5gb+me", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"];
        assert_eq!(names(40), a100);
        assert_eq!(names(80)[0], "1g.10gb");
        assert_eq!(names(141)[4], "3g.71gb");
        assert_eq!(names(180)[0], "1g.23gb");
    }

    #[test]
    fn instances_are_placed_side_by_side_until_there_is_no_room() {
        let capability = MigCapability { memory_gb: 40, multiprocessors: 14 };
        let check = |names: &[&str], expected: Option<Vec<u32>>| {
            let shapes = names.iter().map(|name| Shape::named(name, capability).expect(name));
            assert_eq!(place(&shapes.collect::<Vec<_>>()), expected, "{names:?}");
        };
        check(&["1g.5gb"; 7], Some(vec![0, 1, 2, 3, 4, 5, 6]));
        check(&["1g.5gb"; 8], None);
        check(&["3g.20gb", "2g.10gb", "1g.5gb"], Some(vec![0, 4, 6]));
        check(&["7g.40gb", "1g.5gb"], None);
    }
}
