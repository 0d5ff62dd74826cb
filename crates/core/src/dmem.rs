//! Regions of the kernel's controller for device memory (`dmem` of cgroup v2), as its files list them.
//!
//! Each file has a line per region (`Documentation/admin-guide/cgroup-v2.rst`, "DMEM"):
//!
//! ```text
//! dmem.capacity   drm/0000:03:00.0/vram0 17095983104     root cgroup only: bytes
//! dmem.max        drm/0000:03:00.0/vram0 max             other cgroups: bytes, or `max`
//! ```

use std::str::FromStr;

use crate::pci::PciAddress;

/// Name of the controller.
pub const CONTROLLER: &str = "dmem";

/// A region by the kernel's name, `drm/0000:03:00.0/vram0`: memory of one device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DmemRegion(String);

/// Text that is not a region of a DRM device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a region of the dmem controller, such as drm/0000:03:00.0/vram0")]
pub struct InvalidDmemRegion(String);

show_text!(DmemRegion);
deserialize_from_text!(DmemRegion);

/// Prefix of regions that DRM drivers register (`drmm_cgroup_register_region`).
const SUBSYSTEM: &str = "drm/";

/// Prefix of a GPU's own memory regions: `vram` under amdgpu; `vram0` and `vram1`, one per tile, under xe.
const VRAM_PREFIX: &str = "vram";

/// Longest region name. The kernel's names have about 30 characters.
const MAX_CHARS: usize = 128;

// === impl DmemRegion ===

impl DmemRegion {
    /// Regions of a file with their values. Lines of other subsystems and lines without a value are skipped.
    pub fn parse_lines(text: &str) -> impl Iterator<Item = (Self, &str)> {
        text.lines().filter_map(|line| {
            let (name, value) = line.trim().rsplit_once([' ', '\t'])?;
            Some((name.trim_end().parse().ok()?, value))
        })
    }

    /// Value of this region in a file.
    pub fn value<'a>(&self, text: &'a str) -> Option<&'a str> {
        Self::parse_lines(text).find(|(region, _)| region == self).map(|(_, value)| value)
    }

    /// True for a region of the GPU's own memory: all of it, or the memory of one tile.
    pub fn is_memory_of(&self, gpu: PciAddress) -> bool {
        let name = self.0.strip_prefix(&format!("{SUBSYSTEM}{gpu}/"));
        name.is_some_and(|name| name.starts_with(VRAM_PREFIX))
    }
}

impl FromStr for DmemRegion {
    type Err = InvalidDmemRegion;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let has_name = text.strip_prefix(SUBSYSTEM).is_some_and(|name| !name.is_empty());
        let is_plain = text.len() <= MAX_CHARS && text.bytes().all(|byte| byte.is_ascii_graphic());
        let is_valid = has_name && is_plain;
        if is_valid { Ok(Self(text.to_owned())) } else { Err(InvalidDmemRegion(text.to_owned())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPACITY: &str = "drm/0000:03:00.0/vram0 17095983104\ndrm/0000:03:00.0/stolen 4096\n\
                            other/x 1\n\ndrm/0000:0a:00.0/vram max\ndamaged\n";

    fn region(name: &str) -> DmemRegion {
        name.parse().expect("a region")
    }

    #[test]
    fn a_files_lines_are_regions_with_values() {
        let regions: Vec<_> = DmemRegion::parse_lines(CAPACITY).collect();
        let expected = [
            (region("drm/0000:03:00.0/vram0"), "17095983104"),
            (region("drm/0000:03:00.0/stolen"), "4096"),
            (region("drm/0000:0a:00.0/vram"), "max"),
        ];
        assert_eq!(regions, expected);
        assert_eq!(region("drm/0000:0a:00.0/vram").value(CAPACITY), Some("max"));
        // A name is compared as a whole.
        assert_eq!(region("drm/0000:03:00.0/vram").value(CAPACITY), None);
    }

    #[test]
    fn the_own_memory_of_a_gpu_is_distinguished_from_other_regions() {
        let gpu = "0000:03:00.0".parse().expect("an address");
        let is_own = |name: &str| region(name).is_memory_of(gpu);
        assert!(is_own("drm/0000:03:00.0/vram0") && is_own("drm/0000:03:00.0/vram"));
        for other in ["drm/0000:03:00.0/stolen", "drm/0000:03:00.1/vram", "drm/vram"] {
            assert!(!is_own(other), "{other}");
        }
    }

    #[test]
    fn a_name_with_a_blank_or_of_another_subsystem_is_refused() {
        for wrong in ["", "drm/", "vram", "cma/x", "drm/a b", "drm/a\nb", &"drm/x".repeat(40)] {
            wrong.parse::<DmemRegion>().expect_err(wrong);
        }
    }
}
