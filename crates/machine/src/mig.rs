//! MIG: GPU instance profiles, resources of each instance, and placement by the driver.
//!
//! Names, ids and starts are the same for A100, H100, H200 and B200 (`nvidia-smi mig -lgip` and `-lgipp`).
//! An A30 has its own. [`InstanceResources`] lists the resources of an instance.

mod instances;
mod mode;
mod tables;

pub use instances::MigRefusal;
pub(crate) use instances::free_id;
pub use mode::{MigMode, ModeChangeOutcome};

use crate::card::{Card, MigCapability};

/// Memory that an instance lacks from an even share. Used for a card whose profile lists no exact sizes: see
/// [`MigCapability::memory_mib`].
const RESERVED_MIB: u64 = 256;

/// GPU instance profile, independent of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuInstanceProfile {
    /// `NVML_GPU_INSTANCE_PROFILE_*`.
    pub nvml_profile: u32,
    /// Profile id of the driver: the `ID` column of `nvidia-smi mig -lgip`.
    pub profile_id: u32,
    /// Compute slices.
    pub slices: u32,
    /// Memory slices of an instance, and size of its placement.
    pub memory_slices: u32,
    /// Memory slices at which an instance may start.
    pub possible_starts: &'static [u32],
    /// True if the profile includes the media engines, `+me`. Only one instance per GPU can have media
    /// engines.
    has_media_extensions: bool,
    /// Memory slices of the whole GPU.
    gpu_memory_slices: u32,
    /// Row of the profile in the tables of [`InstanceResources`].
    table_row: usize,
}

/// Resources of an instance on a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstanceResources {
    /// SMs.
    pub multiprocessors: u32,
    /// Copy engines.
    pub copy_engines: u32,
    /// Video decoders.
    pub decoders: u32,
    /// JPEG engines.
    pub jpeg: u32,
    /// Optical flow engines.
    pub optical_flow: u32,
}

/// Reason why a GPU cannot be partitioned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MigError {
    /// The GPU index is too high.
    #[error("there is no GPU {gpu}, the machine has {count}")]
    UnknownGpu {
        /// Index of the GPU.
        gpu: usize,
        /// Number of GPUs.
        count: usize,
    },
    /// The card lacks MIG.
    #[error("GPU {gpu}, {card}, has no MIG")]
    MigUnsupported {
        /// Index of the GPU.
        gpu: usize,
        /// Name of the card.
        card: String,
    },
    /// The card lacks this profile.
    #[error("there is no MIG profile `{0}` for its card; there are {1}")]
    UnknownProfile(String, String),
    /// The instances do not fit side by side.
    #[error("there is no room left for MIG instance `{0}`")]
    InsufficientSlices(String),
}

// === impl GpuInstanceProfile ===

impl GpuInstanceProfile {
    /// Profiles of a card, smallest first.
    pub fn all_of(capability: MigCapability) -> &'static [Self] {
        if capability.slices == tables::QUARTER_SLICES { &tables::A30 } else { tables::PROFILES }
    }

    /// Profile with this name on a card, such as `3g.20gb`.
    pub fn by_name(name: &str, capability: MigCapability) -> Option<Self> {
        Self::all_of(capability).iter().copied().find(|profile| profile.name(capability) == name)
    }

    /// True if any card has a profile with this profile id.
    pub(crate) fn is_profile_id(id: u32) -> bool {
        tables::PROFILES.iter().chain(&tables::A30).any(|profile| profile.profile_id == id)
    }

    /// Profile with the driver's profile id.
    pub fn with_profile_id(id: u32, capability: MigCapability) -> Option<Self> {
        Self::all_of(capability).iter().copied().find(|profile| profile.profile_id == id)
    }

    /// Profile with the `NVML_GPU_INSTANCE_PROFILE_*` number.
    pub fn with_nvml_profile(nvml_profile: u32, capability: MigCapability) -> Option<Self> {
        Self::all_of(capability)
            .iter()
            .copied()
            .find(|profile| profile.nvml_profile == nvml_profile)
    }

    /// Name on a card, `3g.20gb`: memory slices in GB, halves rounded up.
    pub fn name(&self, capability: MigCapability) -> String {
        let gigabytes = (capability.memory_gb * self.memory_slices + self.gpu_memory_slices / 2)
            / self.gpu_memory_slices;
        let suffix = if self.has_media_extensions { "+me" } else { "" };
        format!("{}g.{gigabytes}gb{suffix}", self.slices)
    }

    /// Memory of an instance on a card.
    pub fn memory_mib(&self, card: &Card) -> u64 {
        let exact_sizes = card.mig.and_then(|capability| capability.memory_mib);
        let share =
            card.memory_mib * u64::from(self.memory_slices) / u64::from(self.gpu_memory_slices);
        // Index of 1, 2, 4 and 8 slices, which are powers of two.
        exact_sizes.map_or(share.saturating_sub(RESERVED_MIB), |exact_sizes| {
            exact_sizes[self.memory_slices.trailing_zeros() as usize]
        })
    }

    /// Resources of an instance on a card: the generation's table, scaled to the SMs of this card's slices.
    pub fn resources(&self, card: &Card, capability: MigCapability) -> InstanceResources {
        let table = tables::resource_rows(card.architecture, capability);
        let [multiprocessors, copy_engines, decoders, jpeg, optical_flow] = table[self.table_row];
        let [slice_multiprocessors, ..] = table[0];
        InstanceResources {
            multiprocessors: multiprocessors * capability.multiprocessors / slice_multiprocessors,
            copy_engines,
            decoders,
            jpeg,
            optical_flow,
        }
    }

    /// Maximum number of instances of the profile on one GPU.
    pub fn max_instances(&self) -> u32 {
        let start_count =
            u32::try_from(self.possible_starts.len()).expect("a profile has at most seven starts");
        if self.has_media_extensions { 1 } else { start_count }
    }

    /// Memory slices of an instance with the given start, as a bit mask.
    pub fn slice_mask(&self, start: u32) -> u32 {
        ((1 << self.memory_slices) - 1) << start
    }

    /// First GPU instance id of this size. The driver gives id 0 to the whole GPU, 1 and 2 to halves, 3 to 6 to
    /// quarters, and 7 to 14 to eighths.
    pub fn first_instance_id(&self) -> u32 {
        self.gpu_memory_slices / self.memory_slices - 1
    }
}

/// Places instances side by side in the given order, each at the first free start. The driver does the same
/// without a requested placement. `None` when an instance does not fit.
pub fn place_instances(profiles: &[GpuInstanceProfile]) -> Option<Vec<u32>> {
    let mut occupied_slices = 0u32;
    let place = |(index, profile): (usize, &GpuInstanceProfile)| {
        let same_profile_count =
            profiles[..index].iter().filter(|earlier| *earlier == profile).count();
        let is_below_limit = same_profile_count < profile.max_instances() as usize;
        let is_free = |start: &&u32| occupied_slices & profile.slice_mask(**start) == 0;
        let start = *profile.possible_starts.iter().find(is_free).filter(|_| is_below_limit)?;
        occupied_slices |= profile.slice_mask(start);
        Some(start)
    };
    profiles.iter().enumerate().map(place).collect()
}

/// Profiles by their names on a card, each with its start.
pub fn place_by_name<N: AsRef<str>>(
    names: &[N],
    capability: MigCapability,
) -> Result<Vec<(GpuInstanceProfile, u32)>, MigError> {
    let profile_names = || {
        let names =
            GpuInstanceProfile::all_of(capability).iter().map(|profile| profile.name(capability));
        names.collect::<Vec<_>>().join(", ")
    };
    let mut profiles = Vec::new();
    let mut starts = Vec::new();
    for name in names.iter().map(AsRef::as_ref) {
        let profile = GpuInstanceProfile::by_name(name, capability);
        profiles.push(
            profile.ok_or_else(|| MigError::UnknownProfile(name.to_owned(), profile_names()))?,
        );
        starts = place_instances(&profiles)
            .ok_or_else(|| MigError::InsufficientSlices(name.to_owned()))?;
    }
    Ok(profiles.into_iter().zip(starts).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MachineProfile;

    fn capability(memory_gb: u32) -> MigCapability {
        MigCapability { slices: 7, memory_gb, multiprocessors: 14, memory_mib: None }
    }

    fn names(memory_gb: u32) -> Vec<String> {
        let capability = capability(memory_gb);
        GpuInstanceProfile::all_of(capability)
            .iter()
            .map(|profile| profile.name(capability))
            .collect()
    }

    /// Rows as `nvidia-smi mig -lgip` prints them: instances, memory, SMs, decoders, copy engines,
    /// JPEG engines, optical flow engines.
    #[track_caller]
    fn check(profile: &str, expected: &str) {
        let profile = MachineProfile::named(profile).expect("built in");
        check_card(profile.cards.values().next().expect("a card"), expected);
    }

    #[track_caller]
    fn check_card(card: &Card, expected: &str) {
        let capability = card.mig.expect("it can be partitioned");
        let rows = GpuInstanceProfile::all_of(capability).iter().map(|profile| {
            let resources = profile.resources(card, capability);
            format!(
                "{:<12} {} {:>6} {:>3} {} {:>2} {} {}\n",
                profile.name(capability),
                profile.max_instances(),
                profile.memory_mib(card),
                resources.multiprocessors,
                resources.decoders,
                resources.copy_engines,
                resources.jpeg,
                resources.optical_flow,
            )
        });
        assert_eq!(rows.collect::<String>(), expected);
    }

    #[test]
    fn the_profiles_of_each_card_match_nvidia_smi() {
        check(
            "mig-a100",
            "1g.5gb       7   4864  14 0  1 0 0\n\
             1g.5gb+me    1   4864  14 1  1 1 1\n\
             1g.10gb      4   9856  14 1  1 0 0\n\
             2g.10gb      3   9856  28 1  2 0 0\n\
             3g.20gb      2  19968  42 2  3 0 0\n\
             4g.20gb      1  19968  56 2  4 0 0\n\
             7g.40gb      1  40192  98 5  7 1 1\n",
        );
        check(
            "dgx-h100",
            "1g.10gb      7   9984  16 1  1 1 0\n\
             1g.10gb+me   1   9984  16 1  1 1 1\n\
             1g.20gb      4  20096  26 1  1 1 0\n\
             2g.20gb      3  20096  32 2  2 2 0\n\
             3g.40gb      2  40448  60 3  3 3 0\n\
             4g.40gb      1  40448  64 4  4 4 0\n\
             7g.80gb      1  81152 132 7  8 7 1\n",
        );
        check(
            "hgx-h200",
            "1g.18gb      7  16384  16 1  1 1 0\n\
             1g.18gb+me   1  16384  16 1  1 1 1\n\
             1g.35gb      4  33280  26 1  1 1 0\n\
             2g.35gb      3  33280  32 2  2 2 0\n\
             3g.71gb      2  71168  60 3  3 3 0\n\
             4g.71gb      1  71168  64 4  4 4 0\n\
             7g.141gb     1 143360 132 7  8 7 1\n",
        );
        check(
            "hgx-b200",
            "1g.23gb      7  22663  18 1  2 1 0\n\
             1g.23gb+me   1  22663  18 1  2 1 1\n\
             1g.45gb      4  45583  18 1  2 1 0\n\
             2g.45gb      3  45583  36 1  3 1 0\n\
             3g.90gb      2  91423  54 1  6 1 0\n\
             4g.90gb      1  91423  72 1  8 1 0\n\
             7g.180gb     1 183103 126 1 16 1 1\n",
        );
    }

    #[test]
    fn an_a30_has_quarters_and_an_a100_with_80_gb_has_the_shapes_of_the_one_with_40() {
        let profile = MachineProfile::named("mig-pcie").expect("built in");
        check_card(
            &profile.cards["a30"],
            "1g.6gb       4   5952  14 0  1 0 0\n\
             1g.6gb+me    1   5952  14 1  1 1 1\n\
             2g.12gb      2  11968  28 2  2 0 0\n\
             2g.12gb+me   1  11968  28 2  2 1 1\n\
             4g.24gb      1  24000  56 4  4 1 1\n",
        );
        check_card(
            &profile.cards["a100-80gb"],
            "1g.10gb      7   9728  14 0  1 0 0\n\
             1g.10gb+me   1   9728  14 1  1 1 1\n\
             1g.20gb      4  19968  14 1  1 0 0\n\
             2g.20gb      3  19968  28 1  2 0 0\n\
             3g.40gb      2  40192  42 2  3 0 0\n\
             4g.40gb      1  40192  56 2  4 0 0\n\
             7g.80gb      1  80640  98 5  7 1 1\n",
        );
        let ids = |card: &str| {
            let capability = profile.cards[card].mig.expect("it can be partitioned");
            GpuInstanceProfile::all_of(capability)
                .iter()
                .map(|profile| profile.profile_id)
                .collect::<Vec<_>>()
        };
        assert_eq!(ids("a30"), [14, 21, 5, 6, 0]);
        assert_eq!(ids("a100-80gb"), [19, 20, 15, 14, 9, 5, 0]);
    }

    #[test]
    fn names_match_nvidia_s_for_each_card() {
        let a100 = ["1g.5gb", "1g.5gb+me", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"];
        assert_eq!(names(40), a100);
        assert_eq!(names(80)[0], "1g.10gb");
        assert_eq!(names(141)[4], "3g.71gb");
        assert_eq!(names(180)[0], "1g.23gb");
    }

    #[test]
    fn instances_are_placed_side_by_side_until_there_is_no_room() {
        let check = |names: &[&str], expected: Option<Vec<u32>>| {
            let starts = place_by_name(names, capability(40))
                .map(|placed| placed.into_iter().map(|(_, start)| start).collect());
            assert_eq!(starts.ok(), expected, "{names:?}");
        };
        check(&["1g.5gb"; 7], Some(vec![0, 1, 2, 3, 4, 5, 6]));
        check(&["1g.5gb"; 8], None);
        check(&["3g.20gb", "2g.10gb", "1g.5gb"], Some(vec![0, 4, 6]));
        check(&["7g.40gb", "1g.5gb"], None);
        check(&["1g.5gb+me", "1g.5gb"], Some(vec![0, 1]));
        check(&["1g.5gb+me", "1g.5gb+me"], None);
    }
}
