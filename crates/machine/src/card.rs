//! Card: properties shared by all GPUs of one model.

use serde::{Deserialize, Serialize};

use crate::pci::PciId;

/// Properties of a GPU model, from its data sheet and from NVML on a real card.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Card {
    /// Product name in NVML, `NVIDIA H100 80GB HBM3`.
    pub name: String,
    /// Brand in NVML.
    pub brand: Brand,
    /// Generation of the chip.
    pub architecture: Architecture,
    /// CUDA compute capability, `9.0`.
    pub compute_capability: ComputeCapability,
    /// PCI vendor and device id.
    pub pci: PciId,
    /// PCI subsystem vendor and device id.
    pub subsystem: PciId,
    /// Size of the frame buffer.
    pub memory_mib: u64,
    /// Size of BAR1, the window of CPU and NICs into the frame buffer.
    pub bar1_mib: u64,
    /// Number of CUDA cores.
    pub cores: u32,
    /// Highest power draw.
    pub power_limit_w: u32,
    /// Highest clocks.
    pub clocks_mhz: Clocks,
    /// PCIe link to the host.
    pub pcie: PcieLink,
    /// True if ECC protects the memory.
    #[serde(default = "default_ecc")]
    pub ecc: bool,
    /// NVLink ports of the card, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvlink: Option<NvLinkPorts>,
    /// MIG capability of the card, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<MigCapability>,
}

/// `nvmlBrandType_t`: the values of data centre cards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Brand {
    /// Tesla: Volta.
    Tesla,
    /// NVIDIA: Turing and later.
    Nvidia,
    /// `GeForce`.
    GeForce,
}

/// `nvmlDeviceArchitecture_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Architecture {
    /// V100.
    Volta,
    /// T4.
    Turing,
    /// A100, A10, A30.
    Ampere,
    /// L4, L40S.
    Ada,
    /// H100, H200.
    Hopper,
    /// B200.
    Blackwell,
}

/// CUDA compute capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ComputeCapability {
    /// Number before the point.
    pub major: u8,
    /// Number after the point.
    pub minor: u8,
}

/// Clock frequencies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clocks {
    /// Graphics and SM clock.
    pub graphics: u32,
    /// Memory clock.
    pub memory: u32,
}

/// A PCIe link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PcieLink {
    /// PCIe generation, 1 to 6.
    pub generation: u8,
    /// Number of lanes.
    pub width: u8,
}

/// NVLink ports of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvLinkPorts {
    /// NVLink generation: 2 on Volta, 3 on A100, 4 on H100, 5 on B200.
    pub generation: u8,
    /// Number of links; NVML allows 18 at most.
    pub links: u8,
}

/// MIG resources of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MigCapability {
    /// Number of compute slices: seven, or four on an A30.
    #[serde(default = "default_slices")]
    pub slices: u32,
    /// Memory in GB, which profile names derive from: a card with 40 has `1g.5gb`.
    pub memory_gb: u32,
    /// SMs of one compute slice.
    pub multiprocessors: u32,
    /// Memory in MiB of an instance with 1, 2, 4 and 8 memory slices, from `nvidia-smi mig -lgip`. If unset, it
    /// derives from an even share of the card's memory. A card of four slices ignores the last number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<[u64; 4]>,
}

/// Syntax error in a compute capability.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a compute capability, write it like `\"9.0\"`")]
pub struct ComputeCapabilitySyntaxError(String);

// === impl Architecture ===

impl Architecture {
    /// True if the generation remaps broken memory rows. Earlier generations retire pages.
    pub fn remaps_rows(self) -> bool {
        !matches!(self, Self::Volta | Self::Turing)
    }

    /// True if GPUs of the generation register with a fabric manager when attached to switches.
    pub fn has_fabric(self) -> bool {
        matches!(self, Self::Hopper | Self::Blackwell)
    }

    /// Prefix of the generation's VBIOS versions.
    pub fn vbios_prefix(self) -> &'static str {
        match self {
            Self::Volta => "88.00",
            Self::Turing => "90.04",
            Self::Ampere => "92.00",
            Self::Ada => "95.02",
            Self::Hopper => "96.00",
            Self::Blackwell => "97.00",
        }
    }
}

// === impl MigCapability ===

impl MigCapability {
    /// Memory slices of the whole card: eight, or the number of compute slices on a card of four.
    pub fn memory_slices(self) -> u32 {
        if self.slices == default_slices() { 8 } else { self.slices }
    }
}

// === impl PcieLink ===

impl PcieLink {
    /// Text of `current_link_speed` in sysfs.
    pub fn speed(self) -> &'static str {
        match self.generation {
            0 | 1 => "2.5 GT/s PCIe",
            2 => "5.0 GT/s PCIe",
            3 => "8.0 GT/s PCIe",
            4 => "16.0 GT/s PCIe",
            5 => "32.0 GT/s PCIe",
            _ => "64.0 GT/s PCIe",
        }
    }
}

// === impl ComputeCapability ===

impl TryFrom<String> for ComputeCapability {
    type Error = ComputeCapabilitySyntaxError;

    fn try_from(text: String) -> Result<Self, ComputeCapabilitySyntaxError> {
        let parse = || {
            let (major, minor) = text.split_once('.')?;
            Some(Self { major: major.parse().ok()?, minor: minor.parse().ok()? })
        };
        parse().ok_or_else(|| ComputeCapabilitySyntaxError(text.clone()))
    }
}

impl From<ComputeCapability> for String {
    fn from(capability: ComputeCapability) -> Self {
        format!("{}.{}", capability.major, capability.minor)
    }
}

/// Serde default of `ecc`, which nearly every card has.
fn default_ecc() -> bool {
    true
}

/// Serde default for the number of compute slices.
fn default_slices() -> u32 {
    7
}
