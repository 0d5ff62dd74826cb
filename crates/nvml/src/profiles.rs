//! MIG profiles and placements.

use nvml_wrapper_sys::bindings as sys;

use crate::{
    MigCapacities, Result,
    error::{UnsupportedAsNone as _, at_most},
    gpu::{Gpu, versioned},
    library::{Zeros, call, get, text_in},
};

/// GPU instance profile of a GPU model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigProfile {
    /// Profile id of the driver: the `ID` column of `nvidia-smi mig -lgip`.
    pub id: u32,
    /// Profile name, such as `1g.10gb` or `1g.10gb+me`.
    pub name: String,
    /// Compute slices.
    pub slices: u32,
    /// Maximum number of instances per GPU.
    pub max_instances: u32,
    /// Capacities of an instance.
    pub capacities: MigCapacities,
}

/// Placement of an instance in memory slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MigPlacement {
    /// First slice.
    pub start: u32,
    /// Number of slices.
    pub size: u32,
}

/// Number of profile numbers to try: more than `NVML_GPU_INSTANCE_PROFILE_COUNT`, for newer drivers. A driver reports
/// an unknown number as an invalid argument.
const MAX_PROFILE_NUMBERS: u32 = 32;

/// Upper bound of placements per profile.
const MAX_PLACEMENTS: u32 = 256;

impl Gpu {
    /// All profiles, including those with media extensions. Empty without MIG support, and before driver 510, which has
    /// no profile names.
    pub fn mig_profiles(&self) -> Result<Vec<MigProfile>> {
        let profile = |number| match self.mig_profile(number) {
            // An unknown profile number is an invalid argument.
            Err(error) if error.is_absent() => None,
            profile => profile.unsupported_as_none().transpose(),
        };
        (0..MAX_PROFILE_NUMBERS).filter_map(profile).collect()
    }

    /// All placements of a profile, including occupied ones. Drivers may refuse while MIG is off.
    pub fn mig_placements(&self, profile_id: u32) -> Result<Vec<MigPlacement>> {
        // A null buffer returns the count.
        let mut count: u32 = get!(
            self.table,
            nvmlDeviceGetGpuInstancePossiblePlacements_v2,
            self.handle.0,
            profile_id,
            std::ptr::null_mut()
        )?;
        let length =
            at_most("nvmlDeviceGetGpuInstancePossiblePlacements_v2", count, MAX_PLACEMENTS)?;
        let empty_placement = sys::nvmlGpuInstancePlacement_t { start: 0, size: 0 };
        let mut placements = vec![empty_placement; length as usize];
        call!(
            self.table,
            nvmlDeviceGetGpuInstancePossiblePlacements_v2,
            self.handle.0,
            profile_id,
            placements.as_mut_ptr(),
            &raw mut count
        )?;
        placements.truncate(count as usize);
        Ok(placements.into_iter().map(MigPlacement::from).collect())
    }

    fn mig_profile(&self, number: u32) -> Result<MigProfile> {
        let version = versioned::<sys::nvmlGpuInstanceProfileInfo_v2_t>(2);
        let request = sys::nvmlGpuInstanceProfileInfo_v2_t { version, ..Zeros::zeros() };
        let (table, gpu_handle) = (&self.table, self.handle.0);
        let info = get!(table, nvmlDeviceGetGpuInstanceProfileInfoV, gpu_handle, number; request)?;
        let name = text_in(&info.name);
        Ok(MigProfile {
            id: info.id,
            name: name.strip_prefix("MIG ").unwrap_or(&name).to_owned(),
            slices: info.sliceCount,
            max_instances: info.instanceCount,
            capacities: MigCapacities {
                multiprocessors: info.multiprocessorCount,
                copy_engines: info.copyEngineCount,
                decoders: info.decoderCount,
                encoders: info.encoderCount,
                jpeg_engines: info.jpegCount,
                ofa_engines: info.ofaCount,
                memory_mib: info.memorySizeMB,
            },
        })
    }
}

// === impl MigPlacement ===

impl From<sys::nvmlGpuInstancePlacement_t> for MigPlacement {
    fn from(placement: sys::nvmlGpuInstancePlacement_t) -> Self {
        Self { start: placement.start, size: placement.size }
    }
}

impl From<MigPlacement> for sys::nvmlGpuInstancePlacement_t {
    fn from(placement: MigPlacement) -> Self {
        Self { start: placement.start, size: placement.size }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_fields_contain_the_size_of_the_structure() {
        // nvmlGpuInstanceProfileInfo_v2 in NVIDIA's own bindings.
        assert_eq!(versioned::<sys::nvmlGpuInstanceProfileInfo_v2_t>(2), 0x0200_0098);
    }
}
