//! What may be said of the families of devices that are built in: under which names they are offered, and
//! what a container gets of each.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Handover;

/// What is said of the families.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Families {
    /// What is done to NVIDIA's GPUs between containers.
    pub gpu: Handover,
    /// AMD's GPUs.
    pub amd: AmdRules,
    /// Intel's GPUs.
    pub intel: IntelRules,
    /// FPGAs.
    pub fpga: FpgaRules,
}

/// What is said of AMD's GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AmdRules {
    /// What GPUs and their partitions are offered as.
    pub naming: AmdNaming,
}

/// What AMD's GPUs and their partitions are offered as; the names are those of AMD's plugin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AmdNaming {
    /// Whole GPUs and partitions alike as `amd.com/gpu`.
    #[default]
    Single,
    /// By how the GPU is cut, `amd.com/cpx_nps4`.
    Mixed,
}

/// What is said of Intel's GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IntelRules {
    /// Whether a container finds its GPU's render node as `/dev/dri/renderD128`, whatever its number on
    /// the host: many programs for video look nowhere else.
    pub render_as_128: bool,
}

/// What is said of FPGAs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FpgaRules {
    /// What of a board that Linux' DFL or Intel's OPAE driver serves is one device.
    pub mode: FpgaMode,
    /// What of Alveo boards is one device.
    pub unit: FpgaUnit,
    /// Whether a container gets the node of an Alveo board's management function too. Whoever has it
    /// can put another program on the board, and reset it under every other container.
    pub management_nodes: bool,
    /// The temperature of an Alveo board's FPGA from which on it is too hot, in degrees Celsius. Most boards
    /// tell no such limit of their own.
    pub hottest_celsius: Option<u32>,
    /// The nodes of what a system on a chip is programmed with, by pattern: its drivers need not be where
    /// the kernel shows the region.
    pub nodes: Vec<String>,
    /// What is done to an FPGA when it goes from one container to the next, such as programming it.
    pub handover: Handover,
    /// What an FPGA has to say of itself after it was prepared, by the names of attributes; without any, what
    /// it is offered as.
    pub expect: BTreeMap<String, String>,
}

/// What of a board in regions is one device; the names are those of Intel's plugin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FpgaMode {
    /// Each accelerated function that a region was programmed with, by interface and function.
    #[default]
    Af,
    /// Each region, whatever it is programmed with, by interface.
    Region,
    /// Each region, with the node that programs it.
    RegionDevel,
}

/// What of Alveo boards is one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FpgaUnit {
    /// Each FPGA.
    #[default]
    Board,
    /// All FPGAs that have one serial number: a U30 has two.
    Card,
}
