//! A card: what every GPU of one model has in common.

use serde::{Deserialize, Serialize};

use crate::pci::PciId;

/// Facts about a GPU model, from its data sheet and from what NVML says on a real one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Card {
    /// Product name as NVML says it, `NVIDIA H100 80GB HBM3`.
    pub name: String,
    /// Brand as NVML says it.
    pub brand: Brand,
    /// Generation of the chip.
    pub architecture: Architecture,
    /// CUDA compute capability, `9.0`.
    pub compute_capability: ComputeCapability,
    /// PCI vendor and device.
    pub pci: PciId,
    /// PCI subsystem vendor and device.
    pub subsystem: PciId,
    /// Frame buffer.
    pub memory_mib: u64,
    /// Window through which the CPU and NICs see the frame buffer.
    pub bar1_mib: u64,
    /// CUDA cores.
    pub cores: u32,
    /// Most power that it may draw.
    pub power_limit_w: u32,
    /// Highest clocks.
    pub clocks_mhz: Clocks,
    /// Its link to the host.
    pub pcie: PcieLink,
    /// Whether memory is protected by ECC.
    #[serde(default = "yes")]
    pub ecc: bool,
    /// Its NVLink ports, if it has any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvlink: Option<NvLinkPorts>,
    /// How it can be partitioned, if it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<MigCapability>,
}

/// `nvmlBrandType_t`, the values that data centre cards have.
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

/// A CUDA compute capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ComputeCapability {
    /// Before the point.
    pub major: u8,
    /// After the point.
    pub minor: u8,
}

/// Clock frequencies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clocks {
    /// Graphics and SM.
    pub graphics: u32,
    /// Memory.
    pub memory: u32,
}

/// A PCIe link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PcieLink {
    /// 1 to 6.
    pub generation: u8,
    /// Lanes.
    pub width: u8,
}

/// The NVLink ports of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvLinkPorts {
    /// 2 on Volta, 3 on A100, 4 on H100, 5 on B200.
    pub generation: u8,
    /// How many; NVML knows 18 at most.
    pub links: u8,
}

/// What MIG instances of a card are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MigCapability {
    /// Compute slices: seven, or four as on an A30.
    #[serde(default = "seven")]
    pub slices: u32,
    /// The memory that names of profiles count in: 40 makes `1g.5gb`.
    pub memory_gb: u32,
    /// SMs of one compute slice.
    pub multiprocessors: u32,
    /// Memory of an instance with 1, 2, 4 and 8 memory slices, as `nvidia-smi mig -lgip` lists it;
    /// an even share if unset. A card of four slices has no use for the last number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<[u64; 4]>,
}

/// Text that is not a compute capability.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a compute capability, write it like `\"9.0\"`")]
pub struct ComputeCapabilitySyntaxError(String);

// === impl Architecture ===

impl Architecture {
    /// Whether it replaces broken memory rows by spare ones. Earlier cards retire pages.
    pub fn remaps_rows(self) -> bool {
        !matches!(self, Self::Volta | Self::Turing)
    }

    /// Whether its GPUs register with a fabric manager where they are on switches.
    pub fn has_fabric(self) -> bool {
        matches!(self, Self::Hopper | Self::Blackwell)
    }

    /// How VBIOS versions of this generation begin.
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
    /// Memory slices of the whole card: eight, or as many as there are compute slices.
    pub fn memory_slices(self) -> u32 {
        if self.slices == seven() { 8 } else { self.slices }
    }
}

// === impl PcieLink ===

impl PcieLink {
    /// As `current_link_speed` in sysfs says it.
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

/// Serde's default for things that nearly every card has.
fn yes() -> bool {
    true
}

/// Serde's default for how a card is cut.
fn seven() -> u32 {
    7
}
