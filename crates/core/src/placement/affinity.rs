//! What a connection is worth: the weights that a choice adds up.
//!
//! The PCIe levels have the order and the spacing of NVIDIA's best-effort policy, so that machines
//! without NVLink rank sets as they always did; one NVLink outweighs them all.

use crate::{
    nvlink::NvLinkPair,
    topology::{Connection, PcieLevel},
};

/// Four points for each gigabyte per second and direction; 100 for an NVLink of generations 2 to 4.
const PER_GB_PER_S: i64 = 4;

/// More than any number of links: parts of one device are nearer than two devices can be.
const SAME_DEVICE: i64 = 10_000;

/// Above the sum of the worths of all connections of 512 parts of one device, which is 1.3 x 10^9.
const LINK: i64 = 1 << 31;

/// The worth of links and of whole connections in one number, of which the links decide first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LinksFirst {
    pub(super) links: i64,
    pub(super) whole: i64,
}

/// The worth of one connection; positive, greater for a nearer pair.
pub fn affinity(connection: Connection) -> i64 {
    pcie(connection.pcie)
        + connection.nvlink.map_or(0, nvlink)
        + connection.xgmi_mbps.map_or(0, |mbps| PER_GB_PER_S * i64::from(mbps) / 1_000)
}

/// The worth of a PCIe level alone, which is how near a GPU and a NIC are.
pub(super) fn pcie(level: PcieLevel) -> i64 {
    match level {
        PcieLevel::Device => SAME_DEVICE,
        PcieLevel::Board => 60,
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

// === impl LinksFirst ===

impl LinksFirst {
    /// Sums of such numbers are sums of both.
    pub(super) fn packed(self) -> i64 {
        self.links * LINK + self.whole
    }

    /// A number that was not packed is the worth of whole connections.
    pub(super) fn unpacked(packed: i64) -> Self {
        Self { links: packed / LINK, whole: packed % LINK }
    }
}
