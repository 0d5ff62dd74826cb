//! Profiles of each card family, and the resources of an instance of each profile.

use super::GpuInstanceProfile;
use crate::card::{Architecture, MigCapability};

/// Compute slices of a card with quarters.
pub(super) const QUARTER_SLICES: u32 = 4;

/// Eight memory slices and seven compute slices: A100, H100, H200, B200.
pub(super) const PROFILES: &[GpuInstanceProfile] = &[
    eighths(0, [0, 19], [1, 1], &[0, 1, 2, 3, 4, 5, 6]),
    with_media(eighths(1, [7, 20], [1, 1], &[0, 1, 2, 3, 4, 5, 6])),
    eighths(2, [9, 15], [1, 2], &[0, 2, 4, 6]),
    eighths(3, [1, 14], [2, 2], &[0, 2, 4]),
    eighths(4, [2, 9], [3, 4], &[0, 4]),
    eighths(5, [3, 5], [4, 4], &[0]),
    eighths(6, [4, 0], [7, 8], &[0]),
];

/// Four memory slices and four compute slices: "A30 MIG Profiles" in NVIDIA's MIG user guide.
pub(super) const A30: [GpuInstanceProfile; 5] = [
    quarters(0, [0, 14], 1, &[0, 1, 2, 3]),
    with_media(quarters(1, [7, 21], 1, &[0, 1, 2, 3])),
    quarters(2, [1, 5], 2, &[0, 2]),
    with_media(quarters(3, [8, 6], 2, &[0, 2])),
    quarters(4, [3, 0], 4, &[0]),
];

/// SMs, copy engines, decoders, JPEG engines, optical flow engines of each profile.
type ResourceRow = [u32; 5];

/// A100: `nvidia-smi mig -lgip` in NVIDIA's MIG user guide.
const AMPERE: &[ResourceRow] = &[
    [14, 1, 0, 0, 0],
    [14, 1, 1, 1, 1],
    [14, 1, 1, 0, 0],
    [28, 2, 1, 0, 0],
    [42, 3, 2, 0, 0],
    [56, 4, 2, 0, 0],
    [98, 7, 5, 1, 1],
];

/// A30: the guide's table.
const AMPERE_QUARTERS: [ResourceRow; 5] =
    [[14, 1, 0, 0, 0], [14, 1, 1, 1, 1], [28, 2, 2, 0, 0], [28, 2, 2, 1, 1], [56, 4, 4, 1, 1]];

/// H100 SXM 80 GB and H200. Engines: the guide's tables "GPU Instance Profiles on H100" and "on H200". SMs:
/// `nvidia-smi mig -lgip` on such cards.
const HOPPER: &[ResourceRow] = &[
    [16, 1, 1, 1, 0],
    [16, 1, 1, 1, 1],
    [26, 1, 1, 1, 0],
    [32, 2, 2, 2, 0],
    [60, 3, 3, 3, 0],
    [64, 4, 4, 4, 0],
    [132, 8, 7, 7, 1],
];

/// B200. Engines: the guide's table "GPU Instance Profiles on B200". SMs: the mock in NVIDIA/go-nvml, in
/// the absence of a listing from a real card.
const BLACKWELL: &[ResourceRow] = &[
    [18, 2, 1, 1, 0],
    [18, 2, 1, 1, 1],
    [18, 2, 1, 1, 0],
    [36, 3, 1, 1, 0],
    [54, 6, 1, 1, 0],
    [72, 8, 1, 1, 0],
    [126, 16, 1, 1, 1],
];

/// Resources of a card's profiles, one row for each profile.
pub(super) fn resource_rows(
    architecture: Architecture,
    capability: MigCapability,
) -> &'static [ResourceRow] {
    match architecture {
        _ if capability.slices == QUARTER_SLICES => &AMPERE_QUARTERS,
        Architecture::Hopper => HOPPER,
        Architecture::Blackwell => BLACKWELL,
        _ => AMPERE,
    }
}

const fn eighths(
    row: usize,
    [nvml_profile, profile_id]: [u32; 2],
    [slices, memory_slices]: [u32; 2],
    possible_starts: &'static [u32],
) -> GpuInstanceProfile {
    GpuInstanceProfile {
        nvml_profile,
        profile_id,
        slices,
        memory_slices,
        possible_starts,
        has_media_extensions: false,
        gpu_memory_slices: 8,
        table_row: row,
    }
}

const fn quarters(
    row: usize,
    ids: [u32; 2],
    slices: u32,
    possible_starts: &'static [u32],
) -> GpuInstanceProfile {
    GpuInstanceProfile {
        gpu_memory_slices: 4,
        ..eighths(row, ids, [slices, slices], possible_starts)
    }
}

const fn with_media(profile: GpuInstanceProfile) -> GpuInstanceProfile {
    GpuInstanceProfile { has_media_extensions: true, ..profile }
}
