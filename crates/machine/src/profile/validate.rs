//! Validation of profiles, with the position of each problem.

use std::{collections::BTreeMap, path::PathBuf};

use super::{GpuSpec, MachineProfile, NumaNode};
use crate::{
    card::Card,
    mig::{self, MigError},
    pci::{PciAddress, PciPath},
};

mod adapters;
mod devices;
mod lines;

pub(super) use lines::line_of;

/// NVML's `NVML_NVLINK_MAX_LINKS`.
const MAX_LINKS: u32 = 18;

/// Upper limit of a card's memory, in MiB: a hundred times today's largest, and far below overflow.
const MAX_CARD_MIB: u64 = 1 << 25;
/// Upper limit of a NUMA node's memory, in GiB.
const MAX_NODE_GIB: u64 = 1 << 20;

/// First problem of a profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{entry}: {kind}")]
pub struct ValidationError {
    /// Entry with the problem.
    pub entry: ProfileEntry,
    /// Kind of problem.
    pub kind: ValidationErrorKind,
}

/// Entry of a profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileEntry {
    /// The whole document.
    #[error("the machine")]
    Machine,
    /// NUMA node `numa[n]`.
    #[error("numa[{0}]")]
    Numa(usize),
    /// Card `cards.name`.
    #[error("cards.{0}")]
    Card(String),
    /// GPU `gpus[n]`.
    #[error("gpus[{0}]")]
    Gpu(usize),
    /// Switch `switches[n]`.
    #[error("switches[{0}]")]
    Switch(usize),
    /// Network adapter `nics[n]`.
    #[error("nics[{0}]")]
    Nic(usize),
    /// Bond `bonds[n]`.
    #[error("bonds[{0}]")]
    Bond(usize),
    /// AMD GPU `amd.gpus[n]`.
    #[error("amd.gpus[{0}]")]
    Amd(usize),
    /// Element of `attached`, `hailo:2`.
    #[error("{0}")]
    Attached(String),
    /// Device `devices[n]`.
    #[error("devices[{0}]")]
    Device(usize),
}

/// Kind of problem.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValidationErrorKind {
    /// The machine has no NUMA node; every machine has memory on some node.
    #[error("it has no NUMA node")]
    NoNumaNodes,
    /// The card is unknown, or the profile has several cards and the GPU names none.
    #[error("its card must be one of {0}")]
    UnknownCard(String),
    /// The NUMA node is unknown.
    #[error("there is no NUMA node {0}")]
    UnknownNumaNode(u32),
    /// Two functions share an address.
    #[error("PCI address {0} is taken by an earlier entry")]
    DuplicateAddress(PciAddress),
    /// A function or bridge has two different parents.
    #[error("PCI address {0} has another path in an earlier entry")]
    ConflictingParent(PciAddress),
    /// The GPUs are out of order: NVML numbers GPUs by address.
    #[error("PCI address {0} comes before that of the GPU above: list GPUs in PCI order")]
    UnorderedGpus(PciAddress),
    /// Two GPUs share an identifier.
    #[error("{0} `{1}` is that of an earlier GPU")]
    DuplicateGpuIdentifier(&'static str, String),
    /// A link has no remote end, or its remote end is its own GPU.
    #[error("there is no other GPU {0} to link with")]
    UnlinkedPeer(usize),
    /// A link differs at its two ends.
    #[error("it has {0} links to GPU {1}, which has {2} links back")]
    AsymmetricLink(u8, usize, u8),
    /// The switch is unknown.
    #[error("there is no switch {0}")]
    UnknownSwitch(usize),
    /// The links exceed the ports.
    #[error("it uses {0} NVLinks, its card has {1}")]
    TooManyLinks(u32, u32),
    /// MIG is on, and the card lacks MIG.
    #[error("its card has no MIG: leave out `mig`")]
    MigUnsupported,
    /// The card lacks this MIG profile.
    #[error("its card has no MIG profile `{0}`")]
    UnknownMigProfile(String),
    /// The instances do not fit side by side.
    #[error("there is no room left for MIG instance `{0}`")]
    InsufficientMigSlices(String),
    /// The ports exceed NVML's limit.
    #[error("it has {0} NVLink ports, NVML supports {MAX_LINKS} at most")]
    TooManyPorts(u8),
    /// A GPU has links to both switches and other GPUs.
    #[error("it has links to peers and to switches: leave out `peers`, or write `switches: []`")]
    PeersAndSwitches,
    /// A number is out of range.
    #[error("its {what} is {value}, it must be {min} to {max}")]
    OutOfRange {
        /// Name of the number.
        what: &'static str,
        /// Value in the profile.
        value: u64,
        /// Smallest valid value.
        min: u64,
        /// Largest valid value.
        max: u64,
    },
    /// A CPU belongs to two nodes.
    #[error("CPU {0} is in an earlier node")]
    DuplicateCpu(u32),
    /// NVML cannot encode the version as a number.
    #[error("`{0}` is not a CUDA version, write it like `\"12.8\"`")]
    InvalidCudaVersion(String),
    /// Two adapters share an identifier.
    #[error("{0} `{1}` is that of an earlier adapter")]
    DuplicateNicIdentifier(&'static str, String),
    /// A bond names an unknown interface.
    #[error("there is no interface `{0}`")]
    UnknownInterface(String),
    /// Two devices share a name, or the name is empty.
    #[error("its name `{0}` is empty, or that of an earlier device")]
    InvalidDeviceName(String),
    /// The device profile is unknown.
    #[error("there is no such device profile; there are {0}")]
    UnknownDeviceProfile(String),
    /// A path is outside of the device's folder.
    #[error("`{0}` is outside its folder")]
    PathOutsideDevice(PathBuf),
    /// NVIDIA GPUs require NVIDIA's driver.
    #[error("it has NVIDIA GPUs and no `driver`")]
    MissingDriver,
}

/// Runs every check and returns the first problem.
pub(super) fn validate(profile: &MachineProfile) -> Result<(), ValidationError> {
    if profile.numa.is_empty() {
        return Err(ValidationError {
            entry: ProfileEntry::Machine,
            kind: ValidationErrorKind::NoNumaNodes,
        });
    }
    check_driver(profile).map_err(|kind| ValidationError { entry: ProfileEntry::Machine, kind })?;
    check_nodes(profile)?;
    for (name, card) in &profile.cards {
        check_card(card)
            .map_err(|kind| ValidationError { entry: ProfileEntry::Card(name.clone()), kind })?;
    }
    check_addresses(profile)?;
    check_names(profile)?;
    adapters::check_adapters(profile)?;
    devices::check_amd(profile)?;
    devices::check_devices(profile)?;
    for (index, gpu) in profile.gpus.iter().enumerate() {
        let problem = |kind| ValidationError { entry: ProfileEntry::Gpu(index), kind };
        check_links(profile, index, gpu).map_err(problem)?;
        check_partitions(profile, gpu).map_err(problem)?;
    }
    Ok(())
}

/// Checks that NVIDIA GPUs have a driver with a version.
fn check_driver(profile: &MachineProfile) -> Result<(), ValidationErrorKind> {
    match &profile.driver {
        Some(driver) if parse_cuda_version(&driver.cuda).is_none() => {
            Err(ValidationErrorKind::InvalidCudaVersion(driver.cuda.clone()))
        }
        None if !profile.gpus.is_empty() => Err(ValidationErrorKind::MissingDriver),
        _ => Ok(()),
    }
}

/// Parses `12.8` into two numbers.
fn parse_cuda_version(version: &str) -> Option<(u16, u16)> {
    let (major, minor) = version.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Checks that CPUs belong to one node each, and that memory in bytes does not overflow.
fn check_nodes(profile: &MachineProfile) -> Result<(), ValidationError> {
    for (index, node) in profile.numa.iter().enumerate() {
        let problem = |kind| ValidationError { entry: ProfileEntry::Numa(index), kind };
        check_range("memory_gib", node.memory_gib, 1, MAX_NODE_GIB).map_err(problem)?;
        let shared_cpu = |earlier: &NumaNode| node.cpus.shared_with(&earlier.cpus);
        if let Some(cpu) = profile.numa[..index].iter().find_map(shared_cpu) {
            return Err(problem(ValidationErrorKind::DuplicateCpu(cpu)));
        }
    }
    Ok(())
}

/// Checks the ranges of a card's numbers, so that later arithmetic cannot overflow.
fn check_card(card: &Card) -> Result<(), ValidationErrorKind> {
    check_range("memory_mib", card.memory_mib, 1024, MAX_CARD_MIB)?;
    check_range("bar1_mib", card.bar1_mib, 1, MAX_CARD_MIB)?;
    check_range("power_limit_w", card.power_limit_w.into(), 1, 100_000)?;
    check_range("pcie generation", card.pcie.generation.into(), 1, 6)?;
    check_range("pcie width", card.pcie.width.into(), 1, 32)?;
    if let Some(mig) = card.mig {
        let valid_slices = if mig.slices < 7 { 4 } else { 7 };
        check_range("mig slices", mig.slices.into(), valid_slices, valid_slices)?;
        check_range("mig memory_gb", mig.memory_gb.into(), 8, MAX_CARD_MIB / 1024)?;
        check_range("mig multiprocessors", mig.multiprocessors.into(), 1, 1000)?;
        for memory in mig.memory_mib.into_iter().flatten() {
            check_range("mig memory_mib", memory, 1, card.memory_mib)?;
        }
    }
    match card.nvlink {
        Some(ports) if u32::from(ports.links) > MAX_LINKS => {
            Err(ValidationErrorKind::TooManyPorts(ports.links))
        }
        _ => Ok(()),
    }
}

fn check_range(
    what: &'static str,
    value: u64,
    min: u64,
    max: u64,
) -> Result<(), ValidationErrorKind> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(ValidationErrorKind::OutOfRange { what, value, min, max })
}

/// Checks NUMA nodes, unique addresses, and the order of GPUs.
fn check_addresses(profile: &MachineProfile) -> Result<(), ValidationError> {
    let mut used_addresses = Vec::new();
    let mut parents = BTreeMap::new();
    let functions = pci_functions(profile);
    for (entry, path, numa) in &functions {
        let problem = |kind| ValidationError { entry: entry.clone(), kind };
        if let Some(node) = numa.filter(|node| *node as usize >= profile.numa.len()) {
            return Err(problem(ValidationErrorKind::UnknownNumaNode(node)));
        }
        let address = path.address();
        if used_addresses.contains(&address) {
            return Err(problem(ValidationErrorKind::DuplicateAddress(address)));
        }
        if matches!(entry, ProfileEntry::Gpu(_)) && used_addresses.last() > Some(&address) {
            return Err(problem(ValidationErrorKind::UnorderedGpus(address)));
        }
        if let Some(conflict) = conflicting_parent(&mut parents, path) {
            return Err(problem(ValidationErrorKind::ConflictingParent(conflict)));
        }
        used_addresses.push(address);
    }
    Ok(())
}

/// Records the parent of each function on a path. Returns an address that already has another parent.
fn conflicting_parent<'a>(
    parents: &mut BTreeMap<PciAddress, (&'a str, Option<PciAddress>)>,
    path: &'a PciPath,
) -> Option<PciAddress> {
    let mut parent = None;
    for step in path.steps() {
        let root_and_parent = (path.root(), parent);
        if *parents.entry(*step).or_insert(root_and_parent) != root_and_parent {
            return Some(*step);
        }
        parent = Some(*step);
    }
    None
}

/// Every PCI function with its entry, GPUs first.
fn pci_functions(profile: &MachineProfile) -> Vec<(ProfileEntry, PciPath, Option<u32>)> {
    let mut functions = Vec::new();
    for (n, gpu) in profile.gpus.iter().enumerate() {
        functions.push((ProfileEntry::Gpu(n), gpu.path.clone(), gpu.numa));
    }
    for (n, switch) in profile.switches.iter().enumerate() {
        functions.extend(
            switch.path.iter().map(|path| (ProfileEntry::Switch(n), path.clone(), switch.numa)),
        );
    }
    for (n, nic) in profile.nics.iter().enumerate() {
        functions.push((ProfileEntry::Nic(n), nic.path.clone(), nic.numa));
        functions.extend(
            nic.virtual_functions().map(|(path, _)| (ProfileEntry::Nic(n), path, nic.numa)),
        );
    }
    for (n, gpu) in profile.amd.iter().flat_map(|amd| &amd.gpus).enumerate() {
        functions.push((ProfileEntry::Amd(n), gpu.path.clone(), gpu.numa));
    }
    for (n, device) in profile.devices.iter().enumerate() {
        let pci = device.pci.iter();
        functions.extend(pci.map(|pci| (ProfileEntry::Device(n), pci.path.clone(), pci.numa)));
    }
    functions
}

/// Checks that each GPU has its own UUID, serial number and minor number.
fn check_names(profile: &MachineProfile) -> Result<(), ValidationError> {
    let mut used_names = BTreeMap::new();
    for (index, gpu) in profile.gpus.iter().enumerate() {
        let minor = gpu.minor.map_or_else(|| index.to_string(), |minor| minor.to_string());
        let names = [("uuid", &gpu.uuid), ("serial", &gpu.serial), ("minor", &Some(minor))];
        for (label, name) in names {
            let Some(name) = name else { continue };
            if used_names.insert((label, name.clone()), index).is_some() {
                let kind = ValidationErrorKind::DuplicateGpuIdentifier(label, name.clone());
                return Err(ValidationError { entry: ProfileEntry::Gpu(index), kind });
            }
        }
    }
    Ok(())
}

/// Checks that the card exists, links are symmetric, and ports suffice.
fn check_links(
    profile: &MachineProfile,
    index: usize,
    gpu: &GpuSpec,
) -> Result<(), ValidationErrorKind> {
    let card_names = || profile.cards.keys().cloned().collect::<Vec<_>>().join(", ");
    let card =
        profile.card_of(gpu).ok_or_else(|| ValidationErrorKind::UnknownCard(card_names()))?;
    let has_switches = !profile.switches.is_empty();
    let has_switch_links =
        gpu.switches.as_ref().map_or(has_switches, |switches| !switches.is_empty());
    if has_switch_links && !gpu.peers.is_empty() {
        return Err(ValidationErrorKind::PeersAndSwitches);
    }
    for (&peer, &count) in &gpu.peers {
        let other = profile
            .gpus
            .get(peer)
            .filter(|_| peer != index)
            .ok_or(ValidationErrorKind::UnlinkedPeer(peer))?;
        let links_back = other.peers.get(&index).copied().unwrap_or(0);
        if links_back != count {
            return Err(ValidationErrorKind::AsymmetricLink(count, peer, links_back));
        }
    }
    let is_unknown = |switch: &&usize| **switch >= profile.switches.len();
    if let Some(switch) = gpu.switches.iter().flatten().find(is_unknown) {
        return Err(ValidationErrorKind::UnknownSwitch(*switch));
    }
    let used_ports = gpu.peers.values().map(|count| u32::from(*count)).sum();
    let ports = card.nvlink.map_or(0, |ports| u32::from(ports.links));
    if used_ports > ports {
        Err(ValidationErrorKind::TooManyLinks(used_ports, ports))
    } else {
        Ok(())
    }
}

/// Checks that the instances exist on the card and fit side by side.
fn check_partitions(profile: &MachineProfile, gpu: &GpuSpec) -> Result<(), ValidationErrorKind> {
    let Some(names) = &gpu.mig else { return Ok(()) };
    let capability = profile
        .card_of(gpu)
        .and_then(|card| card.mig)
        .ok_or(ValidationErrorKind::MigUnsupported)?;
    match mig::place_by_name(names, capability) {
        Ok(_) => Ok(()),
        Err(MigError::InsufficientSlices(name)) => {
            Err(ValidationErrorKind::InsufficientMigSlices(name))
        }
        Err(MigError::UnknownProfile(name, _)) => Err(ValidationErrorKind::UnknownMigProfile(name)),
        Err(MigError::UnknownGpu { .. } | MigError::MigUnsupported { .. }) => {
            Err(ValidationErrorKind::MigUnsupported)
        }
    }
}
