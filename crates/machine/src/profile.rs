//! A machine profile: a whole machine, described in YAML that a person can read and write.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

pub use amd::{Amd, AmdCard, AmdGpu, ComputePartition, MemoryPartition, PartitionNames};
pub use attached::{Attached, AttachedSyntaxError};
pub use cluster::{ClusterUuid, Fabric, InvalidCluster};
pub use device::{Child, Device, PciFunction};
pub use nic::{
    Bond, BondMode, LinkState, Nic, Sriov, SubFunction, Vdpa, VdpaDriver, VirtualFunction,
};
pub use validate::{Problem, Wrong};

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

/// A machine: its processors, its driver, and its devices with their places.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// What the profile is called.
    pub name: String,
    /// One sentence for people.
    pub description: String,
    /// Makes UUIDs and serial numbers differ between machines of one profile; the name if unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<String>,
    /// The NVIDIA driver; unset on a machine that has nothing of NVIDIA's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<Driver>,
    /// DMI product name.
    pub product: String,
    /// NUMA nodes, in order.
    pub numa: Vec<NumaNode>,
    /// Models of GPU, by a name that [`GpuPlace::card`] uses.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub cards: BTreeMap<String, Card>,
    /// NVIDIA GPUs, in PCI order, which is the order of their NVML indices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuPlace>,
    /// `NVSwitch` chips.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub switches: Vec<Switch>,
    /// The fabric that its switches are part of, if that reaches beyond the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric: Option<Fabric>,
    /// Network adapters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nics: Vec<Nic>,
    /// Network interfaces that act as one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bonds: Vec<Bond>,
    /// GPUs of AMD's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub amd: Option<Amd>,
    /// Devices by the names of their profiles; they become [`Self::devices`] as the profile is read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attached: Vec<Attached>,
    /// Devices of any other sort.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<Device>,
}

/// Versions of the NVIDIA driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Driver {
    /// `570.133.20`.
    pub version: String,
    /// The CUDA version that it supports, `12.8`.
    pub cuda: String,
}

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NumaNode {
    /// Its CPUs.
    pub cpus: CpuList,
    /// Its memory.
    pub memory_gib: u64,
}

/// A GPU: which card, and where it sits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuPlace {
    /// Key in [`Profile::cards`]; may be left out where there is only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub card: Option<String>,
    /// The way from the host bridge.
    pub path: PciPath,
    /// Index of its NUMA node; firmware of small machines does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa: Option<u32>,
    /// Minor number of its device node; its index if unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minor: Option<u32>,
    /// `GPU-…`; made from the seed and its index if unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Serial number; made from the seed and its index if unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// GPUs linked directly by NVLink: their indices, and how many links each has.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub peers: BTreeMap<usize, u8>,
    /// Indices of the switches that its links are spread over; all of them if unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switches: Option<Vec<usize>>,
    /// MIG instances by profile, `1g.5gb`. An empty list is MIG without instances; unset is no MIG.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<Vec<String>>,
}

/// An `NVSwitch` chip.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Switch {
    /// The way from the host bridge; unset where the host does not see the switch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PciPath>,
    /// PCI vendor and device.
    pub pci: PciId,
    /// Index of its NUMA node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa: Option<u32>,
}

/// Why there is no profile.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// Neither a name nor a file.
    #[error("no machine profile is called `{name}` and no such file exists; there are {known}")]
    Unknown {
        /// What was asked for.
        name: String,
        /// Every built-in name.
        known: String,
    },
    /// The file exists and cannot be read.
    #[error("cannot read machine profile {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Not YAML, or not a profile.
    #[error("{origin}:{line}:{column}: {message}")]
    Syntax {
        /// File, or name of a built-in profile.
        origin: String,
        /// Counted from 1.
        line: u64,
        /// Counted from 1.
        column: u64,
        /// What the parser says, without the place.
        message: String,
    },
    /// A profile of a machine that cannot be.
    #[error("{origin}:{line}: {problem}")]
    Impossible {
        /// File, or name of a built-in profile.
        origin: String,
        /// Where the entry begins, counted from 1.
        line: u64,
        /// What is wrong with it.
        problem: Problem,
    },
}

// === impl Profile ===

impl Profile {
    /// Names of the built-in profiles.
    pub fn names() -> impl Iterator<Item = &'static str> {
        builtin::ALL.iter().map(|(name, _)| *name)
    }

    /// Names of the built-in profiles of machines with NVIDIA's driver.
    pub fn names_with_nvidia() -> impl Iterator<Item = &'static str> {
        Self::names().filter(|name| Self::named(name).is_ok_and(|profile| profile.driver.is_some()))
    }

    /// A built-in profile.
    pub fn named(name: &str) -> Result<Self, ProfileError> {
        let found = builtin::ALL.iter().find(|(known, _)| *known == name);
        let (origin, yaml) = found.ok_or_else(|| ProfileError::unknown(name))?;
        Self::parse(origin, yaml)
    }

    /// A built-in profile by name, or any profile by the path of its file, which `read` gives.
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

    /// A profile from its text; `origin` is what errors call it.
    pub fn parse(origin: &str, yaml: &str) -> Result<Self, ProfileError> {
        let mut profile: Self =
            serde_saphyr::from_str(yaml).map_err(|error| ProfileError::syntax(origin, &error))?;
        let attached = std::mem::take(&mut profile.attached);
        let valid = profile.validate();
        let valid = valid.and_then(|()| attached.iter().try_for_each(|more| profile.attach(more)));
        valid.map_err(|problem| ProfileError::Impossible {
            origin: origin.to_owned(),
            line: validate::line_of(&problem, yaml),
            problem,
        })?;
        Ok(profile)
    }

    /// Whether such a machine can be: see [`Problem`].
    pub fn validate(&self) -> Result<(), Problem> {
        validate::validate(self)
    }

    /// The card of a GPU.
    pub fn card_of(&self, gpu: &GpuPlace) -> Option<&Card> {
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
        let known = Profile::names().collect::<Vec<_>>().join(", ");
        Self::Unknown { name: name.to_owned(), known }
    }

    fn syntax(origin: &str, error: &serde_saphyr::Error) -> Self {
        let place = error.location();
        Self::Syntax {
            origin: origin.to_owned(),
            line: place.map_or(1, |place| place.line()),
            column: place.map_or(1, |place| place.column()),
            message: message_without_place(error),
        }
    }
}

/// The parser's words; it writes the place behind them, we write it in front.
fn message_without_place(error: &serde_saphyr::Error) -> String {
    let text = error.without_snippet().to_string();
    let message = text.split(" at line ").next().unwrap_or(&text);
    message.lines().next().unwrap_or(message).trim_start_matches("error: ").to_owned()
}
