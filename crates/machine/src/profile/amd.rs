//! AMD GPUs: their card, their positions, and their partitions.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::pci::{PciId, PciPath};

/// AMD hardware of a machine: one GPU model, and its driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Amd {
    /// Version of the kernel module, `6.12.12`.
    pub driver: String,
    /// GPU model.
    pub card: AmdCard,
    /// Names of a GPU's partitions after the first one.
    #[serde(default)]
    pub partitions: PartitionNames,
    /// GPUs in PCI order.
    pub gpus: Vec<AmdGpu>,
}

/// Properties shared by all GPUs of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AmdCard {
    /// Product name in the board's EEPROM, `AMD Instinct MI300X OAM`.
    pub name: String,
    /// PCI vendor and device id.
    pub pci: PciId,
    /// PCI subsystem vendor and device id.
    pub subsystem: PciId,
    /// Memory of a GPU.
    pub memory_mib: u64,
    /// Compute units of a GPU.
    pub compute_units: u32,
    /// Compute dies of a GPU: its highest number of partitions.
    pub dies: u32,
    /// Compiler target in the notation of the kernel's compute driver (KFD): `90402` for gfx942.
    pub gfx_target: u32,
}

/// One GPU: its position, partition modes and peers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AmdGpu {
    /// Path from the host bridge.
    pub path: PciPath,
    /// Index of the NUMA node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa: Option<u32>,
    /// Compute partition mode.
    #[serde(default)]
    pub compute: ComputePartition,
    /// Memory partition mode, `NPS1`.
    #[serde(default)]
    pub memory: MemoryPartition,
    /// Indices of xGMI peers; all other GPUs if unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peers: Option<Vec<usize>>,
}

/// Compute partition mode: the number of partitions that share a GPU's compute dies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum ComputePartition {
    /// One partition.
    #[default]
    Spx,
    /// Two partitions.
    Dpx,
    /// Four partitions.
    Qpx,
    /// One partition per die.
    Cpx,
}

/// Memory partition mode: the number of NUMA domains of a GPU's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum MemoryPartition {
    /// One domain.
    #[default]
    Nps1,
    /// Two domains.
    Nps2,
    /// Four domains.
    Nps4,
}

/// Names of a GPU's partitions after the first one, which has the GPU's name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PartitionNames {
    /// `amdgpu_xcp_0`: older drivers. Every possible partition is present in every mode.
    #[default]
    Underscore,
    /// `amdgpu_xcp.0`: newer drivers. Only the partitions of the current mode are present.
    Dot,
}

// === impl ComputePartition ===

impl ComputePartition {
    /// Number of partitions of a GPU with this number of dies.
    pub fn partition_count(self, dies: u32) -> u32 {
        match self {
            Self::Spx => 1,
            Self::Dpx => 2,
            Self::Qpx => 4,
            Self::Cpx => dies,
        }
    }
}

impl fmt::Display for ComputePartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Spx => "SPX",
            Self::Dpx => "DPX",
            Self::Qpx => "QPX",
            Self::Cpx => "CPX",
        })
    }
}

// === impl MemoryPartition ===

impl MemoryPartition {
    /// Number of NUMA domains.
    pub fn domains(self) -> u32 {
        match self {
            Self::Nps1 => 1,
            Self::Nps2 => 2,
            Self::Nps4 => 4,
        }
    }
}

impl fmt::Display for MemoryPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NPS{}", self.domains())
    }
}
