//! MIG profiles: what a GPU could be cut into, and where each instance may stand.

use nvml_wrapper_sys::bindings as sys;

use crate::{
    MigShare, Result,
    error::{Optional as _, at_most},
    gpu::{Gpu, versioned},
    library::{call, get, text_in},
};

/// A GPU instance profile of a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigProfile {
    /// What the driver calls it: the `ID` column of `nvidia-smi mig -lgip`.
    pub id: u32,
    /// `1g.10gb`, `1g.10gb+me`.
    pub name: String,
    /// Compute slices.
    pub slices: u32,
    /// How many a GPU can hold at most.
    pub most: u32,
    /// What an instance of it has of the GPU.
    pub share: MigShare,
}

/// The memory slices of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MigPlacement {
    /// The first.
    pub start: u32,
    /// How many.
    pub size: u32,
}

/// `NVML_GPU_INSTANCE_PROFILE_COUNT` of headers to come: drivers answer that they do not know a
/// profile, and the bindings' count ends where their header did.
const PROFILES: u32 = 32;

/// More than any GPU has places for instances of one profile.
const MOST_PLACES: u32 = 256;

impl Gpu {
    /// Every profile that the GPU can be cut to, those with media extensions included; none where it
    /// cannot do MIG, or its driver does not name profiles (before R510).
    pub fn mig_profiles(&self) -> Result<Vec<MigProfile>> {
        let profile = |number| match self.mig_profile(number) {
            // A number beyond what this driver knows is an invalid argument.
            Err(error) if error.is_absent() => None,
            profile => profile.optional().transpose(),
        };
        (0..PROFILES).filter_map(profile).collect()
    }

    /// Where instances of a profile may stand, whatever stands there now. A driver need not tell while MIG is off.
    pub fn mig_placements(&self, profile_id: u32) -> Result<Vec<MigPlacement>> {
        // Without a place for them they are counted.
        let mut count: u32 = get!(
            self.table,
            nvmlDeviceGetGpuInstancePossiblePlacements_v2,
            self.handle.0,
            profile_id,
            std::ptr::null_mut()
        )?;
        let most = at_most("nvmlDeviceGetGpuInstancePossiblePlacements_v2", count, MOST_PLACES)?;
        let nowhere = sys::nvmlGpuInstancePlacement_t { start: 0, size: 0 };
        let mut places = vec![nowhere; most as usize];
        call!(
            self.table,
            nvmlDeviceGetGpuInstancePossiblePlacements_v2,
            self.handle.0,
            profile_id,
            places.as_mut_ptr(),
            &raw mut count
        )?;
        places.truncate(count as usize);
        Ok(places.into_iter().map(MigPlacement::from).collect())
    }

    fn mig_profile(&self, number: u32) -> Result<MigProfile> {
        // SAFETY: integers and arrays of integers, for which all zeros is a value.
        let mut info: sys::nvmlGpuInstanceProfileInfo_v2_t = unsafe { std::mem::zeroed() };
        info.version = versioned::<sys::nvmlGpuInstanceProfileInfo_v2_t>(2);
        call!(
            self.table,
            nvmlDeviceGetGpuInstanceProfileInfoV,
            self.handle.0,
            number,
            &raw mut info
        )?;
        let name = text_in(&info.name);
        Ok(MigProfile {
            id: info.id,
            name: name.strip_prefix("MIG ").unwrap_or(&name).to_owned(),
            slices: info.sliceCount,
            most: info.instanceCount,
            share: MigShare {
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
    fn from(place: sys::nvmlGpuInstancePlacement_t) -> Self {
        Self { start: place.start, size: place.size }
    }
}

impl From<MigPlacement> for sys::nvmlGpuInstancePlacement_t {
    fn from(place: MigPlacement) -> Self {
        Self { start: place.start, size: place.size }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_size_that_their_version_promises() {
        // nvmlGpuInstanceProfileInfo_v2 in NVIDIA's own bindings.
        assert_eq!(versioned::<sys::nvmlGpuInstanceProfileInfo_v2_t>(2), 0x0200_0098);
    }
}
