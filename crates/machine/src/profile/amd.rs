//! AMD's GPUs: which card, where each sits, and how they are cut.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::pci::{PciId, PciPath};

/// AMD's half of a machine: one model of GPU, and the driver that shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Amd {
    /// Version of the kernel module, `6.12.12`.
    pub driver: String,
    /// The model.
    pub card: AmdCard,
    /// What the driver calls the partitions of a GPU after the first.
    #[serde(default)]
    pub partitions: PartitionNames,
    /// GPUs, in PCI order.
    pub gpus: Vec<AmdGpu>,
}

/// What all GPUs of a model have in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AmdCard {
    /// As the board's memory says, `AMD Instinct MI300X OAM`.
    pub name: String,
    /// PCI vendor and device.
    pub pci: PciId,
    /// PCI subsystem vendor and device.
    pub subsystem: PciId,
    /// Memory of a GPU.
    pub memory_mib: u64,
    /// Compute units of a GPU.
    pub compute_units: u32,
    /// Compute dies of a GPU: into how many parts it can be cut.
    pub dies: u32,
    /// What compilers build for, as KFD writes it: `90402` for gfx942.
    pub gfx_target: u32,
}

/// A GPU of AMD's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AmdGpu {
    /// The way from the host bridge.
    pub path: PciPath,
    /// Index of its NUMA node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa: Option<u32>,
    /// How its compute dies are cut.
    #[serde(default)]
    pub compute: ComputePartition,
    /// How its memory is cut, `NPS1`.
    #[serde(default)]
    pub memory: MemoryPartition,
    /// Indices of the GPUs that it is linked with by xGMI; all others if unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peers: Option<Vec<usize>>,
}

/// Into how many parts the compute dies of a GPU are cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum ComputePartition {
    /// One.
    #[default]
    Spx,
    /// Two.
    Dpx,
    /// Four.
    Qpx,
    /// As many as there are dies.
    Cpx,
}

/// Into how many NUMA domains the memory of a GPU is cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum MemoryPartition {
    /// One.
    #[default]
    Nps1,
    /// Two.
    Nps2,
    /// Four.
    Nps4,
}

/// What the driver calls the partitions of a GPU after the first, which has the GPU's own name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PartitionNames {
    /// `amdgpu_xcp_0`: the driver's first way. All that a GPU can have are there in every mode.
    #[default]
    Underscore,
    /// `amdgpu_xcp.0`: a newer driver. Only those of the mode are there.
    Dot,
}

// === impl ComputePartition ===

impl ComputePartition {
    /// How many parts a GPU with so many dies has.
    pub fn parts(self, dies: u32) -> u32 {
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
    /// How many domains there are.
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
