//! Affinity of two devices: the weight of their connection.
//!
//! PCIe levels have the values of NVIDIA's best-effort policy; one NVLink outweighs all of them. Linked GPUs do
//! not communicate over PCIe, so their PCIe level does not count.

use crate::{
    nvlink::NvLinkPair,
    topology::{Connection, PcieLevel},
};

/// Points per GB/s of one direction: 100 for an NVLink of generations 2 to 4.
const PER_GB_PER_S: i64 = 4;

/// Affinity of parts of one device: greater than that of any number of links.
const SAME_DEVICE: i64 = 10_000;

/// Radix of the packed form, [`Affinity::packed`].
///
/// Exceeds the PCIe sum of all pairs of 1,000 devices, 3 x 10^7. Twice the link sum of 600 parts of one
/// device, 3.6 x 10^9, stays below the 4.2 x 10^9 that fit.
const RADIX: i64 = 1 << 31;

/// Two affinity measures in one sortable number.
///
/// The sum of packed numbers packs the sums of both measures. Comparisons use the primary measure, then PCIe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Affinity {
    /// Affinity by links, else by PCIe; by links alone for objectives with a term for links.
    pub(super) primary: i64,
    /// Affinity by PCIe level.
    pub(super) pcie: i64,
}

/// Affinity of two devices by their links, else by PCIe. Positive; greater is nearer.
pub fn affinity(connection: Connection) -> i64 {
    match links(connection) {
        0 => pcie(connection.pcie),
        links => links,
    }
}

/// Affinity by links alone; 0 without links.
pub(super) fn links(connection: Connection) -> i64 {
    let xgmi = |mbps| PER_GB_PER_S * i64::from(mbps) / 1_000;
    match connection.pcie {
        PcieLevel::Device => SAME_DEVICE,
        _ => connection.nvlink.map_or(0, nvlink) + connection.xgmi_mbps.map_or(0, xgmi),
    }
}

pub(super) fn pcie(level: PcieLevel) -> i64 {
    match level {
        PcieLevel::Device | PcieLevel::Board => 60,
        PcieLevel::Pix => 50,
        PcieLevel::Pxb => 40,
        PcieLevel::Phb => 30,
        PcieLevel::Node => 20,
        PcieLevel::Sys => 10,
    }
}

/// Switched links count as direct ones: a switch serves any pair at full width.
fn nvlink(pair: NvLinkPair) -> i64 {
    i64::from(pair.links) * PER_GB_PER_S * gb_per_s(pair.generation)
}

/// Bandwidth of one link per direction. NVIDIA's data sheets give the sum of all links and both directions:
/// 160 GB/s of 4 (P100), 300 of 6 (V100), 600 of 12 (A100), 900 of 18 (H100), 1800 of 18 (B200).
fn gb_per_s(generation: Option<u32>) -> i64 {
    match generation {
        Some(1) => 20,
        None | Some(0..=4) => 25,
        Some(_) => 50,
    }
}

// === impl Affinity ===

impl Affinity {
    /// Both measures as one number.
    pub(super) fn packed(self) -> i64 {
        self.primary * RADIX + self.pcie
    }

    /// Both measures of a packed number, or of a sum of them.
    pub(super) fn unpacked(packed: i64) -> Self {
        Self { primary: packed / RADIX, pcie: packed % RADIX }
    }

    /// Affinity of the path that data takes: links, else PCIe.
    pub(super) fn data_path(self) -> i64 {
        if self.primary > 0 { self.primary } else { self.pcie }
    }
}
