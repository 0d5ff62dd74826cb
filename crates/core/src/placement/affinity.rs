//! What a connection is worth: the weights that a choice adds up.
//!
//! The PCIe levels have the order and the spacing of NVIDIA's best-effort policy, and one NVLink outweighs
//! them all. Where two GPUs are linked their data does not go over PCIe, so its level does not count there.

use crate::{
    nvlink::NvLinkPair,
    topology::{Connection, PcieLevel},
};

/// Four points for each gigabyte per second and direction; 100 for an NVLink of generations 2 to 4.
const PER_GB_PER_S: i64 = 4;

/// More than any number of links: parts of one device are nearer than two devices can be.
const SAME_DEVICE: i64 = 10_000;

/// Above the sum of the PCIe worths of all pairs of 1,000 devices, which is 3 x 10^7; and small enough for
/// twice the sum of the worths of 600 parts of one device, which is 3.6 x 10^9 of the 4.2 x 10^9 that fit.
const FIRST: i64 = 1 << 31;

/// What a connection is worth by two measures, which travel in one number: sums of such numbers are sums
/// of both, and of two numbers the first measure decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Worth {
    /// What data travels over; or the links alone, where PCIe shall not stand in for them.
    pub(super) first: i64,
    /// Where the devices sit.
    pub(super) pcie: i64,
}

/// The worth of what data travels over between two devices: their links, or PCIe where they have none.
/// Positive, greater for a nearer pair.
pub fn affinity(connection: Connection) -> i64 {
    match links(connection) {
        0 => pcie(connection.pcie),
        links => links,
    }
}

/// The worth of links alone; 0 without. Parts of one device need none to be nearer than any.
pub(super) fn links(connection: Connection) -> i64 {
    let xgmi = |mbps| PER_GB_PER_S * i64::from(mbps) / 1_000;
    match connection.pcie {
        PcieLevel::Device => SAME_DEVICE,
        _ => connection.nvlink.map_or(0, nvlink) + connection.xgmi_mbps.map_or(0, xgmi),
    }
}

/// The worth of a PCIe level.
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

/// Links of a switch count as direct ones do: a switch gives any pair the full width of its ends.
fn nvlink(pair: NvLinkPair) -> i64 {
    i64::from(pair.links) * PER_GB_PER_S * gb_per_s(pair.generation)
}

/// One link's bandwidth in one direction. NVIDIA's data sheets give the sum of both directions of all
/// links: 160 GB/s of 4 (P100), 300 of 6 (V100), 600 of 12 (A100), 900 of 18 (H100), 1800 of 18 (B200).
fn gb_per_s(generation: Option<u32>) -> i64 {
    match generation {
        Some(1) => 20,
        None | Some(0..=4) => 25,
        Some(_) => 50,
    }
}

// === impl Worth ===

impl Worth {
    /// Both in one number.
    pub(super) fn packed(self) -> i64 {
        self.first * FIRST + self.pcie
    }

    /// Both of a number, or of a sum of such numbers.
    pub(super) fn unpacked(packed: i64) -> Self {
        Self { first: packed / FIRST, pcie: packed % FIRST }
    }

    /// What data travels over, also where links alone are the first measure.
    pub(super) fn affinity(self) -> i64 {
        if self.first > 0 { self.first } else { self.pcie }
    }
}
