//! Machine profile: description of a whole machine in YAML.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

pub use amd::{Amd, AmdCard, AmdGpu, ComputePartition, MemoryPartition, PartitionNames};
pub use attached::{Attached, AttachedSyntaxError};
pub use cluster::{ClusterUuid, Fabric, InvalidCluster};
pub use device::{ChildDevice, Device, PciFunction};
pub use nic::{
    Bond, BondMode, LinkState, Nic, Sriov, SubFunction, Vdpa, VdpaDriver, VirtualFunction,
};
pub use validate::{ValidationError, ValidationErrorKind};

use crate::{
    card::Card,
    cpus::CpuList,
    pci::{PciId, PciPath},
};

mod amd;
mod attached;
mod builtin;
mod cluster;
mod device;
mod nic;
mod validate;

/// Machine: processors, driver, and devices with their positions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MachineProfile {
    /// Name of the profile.
    pub name: String,
    /// Description in one sentence.
    pub description: String,
    /// Seed of UUIDs and serial numbers, which differ between machines with different seeds; the name if unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<String>,
    /// NVIDIA driver; unset on a machine without NVIDIA hardware.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<Driver>,
    /// DMI product name.
    pub product: String,
    /// NUMA nodes, in order.
    pub numa: Vec<NumaNode>,
    /// GPU models, by the names that [`GpuSpec::card`] uses.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub cards: BTreeMap<String, Card>,
    /// NVIDIA GPUs in PCI order, which is the order of NVML indices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuSpec>,
    /// `NVSwitch` chips.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub switches: Vec<Switch>,
    /// Fabric of the switches, if the fabric extends beyond the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric: Option<Fabric>,
    /// Network adapters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nics: Vec<Nic>,
    /// Bonded network interfaces.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bonds: Vec<Bond>,
    /// AMD GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub amd: Option<Amd>,
    /// Devices by device profile name; parsing expands them into [`Self::devices`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attached: Vec<Attached>,
    /// All other devices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<Device>,
}

/// Versions of the NVIDIA driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Driver {
    /// `570.133.20`.
    pub version: String,
    /// Highest supported CUDA version, `12.8`.
    pub cuda: String,
}

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NumaNode {
    /// CPUs of the node.
    pub cpus: CpuList,
    /// Memory of the node.
    pub memory_gib: u64,
}

/// GPU: its card and its position.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuSpec {
    /// Key in [`MachineProfile::cards`]; optional if the profile has a single card.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub card: Option<String>,
    /// Path from the host bridge.
    pub path: PciPath,
    /// Index of the NUMA node; unset if the firmware of a small machine omits it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa: Option<u32>,
    /// Minor number of the device node; the GPU's index if unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minor: Option<u32>,
    /// UUID, `GPU-…`; derived from seed and index if unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Serial number; derived from seed and index if unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// Direct NVLink peers: GPU index to number of links.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub peers: BTreeMap<usize, u8>,
    /// Indices of the switches that share the GPU's links; all switches if unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switches: Option<Vec<usize>>,
    /// MIG instances by profile, `1g.5gb`. An empty list is MIG without instances; unset is MIG off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<Vec<String>>,
}

/// `NVSwitch` chip.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Switch {
    /// Path from the host bridge; unset if the host cannot see the switch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PciPath>,
    /// PCI vendor and device id.
    pub pci: PciId,
    /// Index of the NUMA node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa: Option<u32>,
}

/// Reason why a profile is unavailable.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// The name is neither a built-in profile nor a file.
    #[error("`{name}` is neither a machine profile nor a file; the profiles are {known}")]
    Unknown {
        /// Requested name.
        name: String,
        /// Every built-in name.
        known: String,
    },
    /// The file exists but is unreadable.
    #[error("cannot read machine profile {path}")]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error from the kernel.
        source: io::Error,
    },
    /// The text is not valid YAML, or not a valid profile.
    #[error("{origin}:{line}:{column}: {message}")]
    Syntax {
        /// File, or name of a built-in profile.
        origin: String,
        /// Line, counted from 1.
        line: u64,
        /// Column, counted from 1.
        column: u64,
        /// Message of the parser, without the position.
        message: String,
    },
    /// The profile describes an impossible machine.
    #[error("{origin}:{line}: {problem}")]
    Invalid {
        /// File, or name of a built-in profile.
        origin: String,
        /// First line of the entry, counted from 1.
        line: u64,
        /// Problem of the entry.
        problem: ValidationError,
    },
}

// === impl MachineProfile ===

impl MachineProfile {
    /// Names of the built-in profiles.
    pub fn names() -> impl Iterator<Item = &'static str> {
        builtin::ALL.iter().map(|(name, _)| *name)
    }

    /// Names of the built-in profiles of machines with NVIDIA's driver.
    pub fn names_with_nvidia() -> impl Iterator<Item = &'static str> {
        Self::names().filter(|name| Self::named(name).is_ok_and(|profile| profile.driver.is_some()))
    }

    /// Built-in profile by name.
    pub fn named(name: &str) -> Result<Self, ProfileError> {
        let builtin = builtin::ALL.iter().find(|(known, _)| *known == name);
        let (origin, yaml) = builtin.ok_or_else(|| ProfileError::unknown(name))?;
        Self::parse(origin, yaml)
    }

    /// Built-in profile by name, or any profile by file path; `read` reads the file.
    pub fn load(
        name_or_path: &str,
        read: impl FnOnce(&Path) -> io::Result<String>,
    ) -> Result<Self, ProfileError> {
        let path = Path::new(name_or_path);
        if Self::names().any(|name| name == name_or_path) {
            return Self::named(name_or_path);
        }
        let yaml = read(path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => ProfileError::unknown(name_or_path),
            _ => ProfileError::Read { path: path.to_owned(), source },
        })?;
        Self::parse(name_or_path, &yaml)
    }

    /// Parses a profile and expands [`Self::attached`]. Errors name `origin` as the source of the text.
    pub fn parse(origin: &str, yaml: &str) -> Result<Self, ProfileError> {
        let mut profile: Self =
            serde_saphyr::from_str(yaml).map_err(|error| ProfileError::syntax(origin, &error))?;
        let attached = std::mem::take(&mut profile.attached);
        let outcome = profile.validate();
        let outcome =
            outcome.and_then(|()| attached.iter().try_for_each(|entry| profile.attach(entry)));
        outcome.map_err(|problem| ProfileError::Invalid {
            origin: origin.to_owned(),
            line: validate::line_of(&problem, yaml),
            problem,
        })?;
        Ok(profile)
    }

    /// Checks that the machine is possible: see [`ValidationError`].
    pub fn validate(&self) -> Result<(), ValidationError> {
        validate::validate(self)
    }

    /// Card of a GPU.
    pub fn card_of(&self, gpu: &GpuSpec) -> Option<&Card> {
        match &gpu.card {
            Some(name) => self.cards.get(name),
            None if self.cards.len() == 1 => self.cards.values().next(),
            None => None,
        }
    }
}

// === impl ProfileError ===

impl ProfileError {
    fn unknown(name: &str) -> Self {
        let known = MachineProfile::names().collect::<Vec<_>>().join(", ");
        Self::Unknown { name: name.to_owned(), known }
    }

    fn syntax(origin: &str, error: &serde_saphyr::Error) -> Self {
        let location = error.location();
        Self::Syntax {
            origin: origin.to_owned(),
            line: location.map_or(1, |location| location.line()),
            column: location.map_or(1, |location| location.column()),
            message: message_without_position(error),
        }
    }
}

/// Message of the parser, without the position at its end. [`ProfileError`] puts the position first.
fn message_without_position(error: &serde_saphyr::Error) -> String {
    let text = error.without_snippet().to_string();
    let message = text.split(" at line ").next().unwrap_or(&text);
    message.lines().next().unwrap_or(message).trim_start_matches("error: ").to_owned()
}
