//! What a machine cannot be, and where its profile says so.

use std::collections::BTreeMap;

use serde::{Deserialize, de::IgnoredAny};
use serde_saphyr::Spanned;

use super::{GpuPlace, Profile};
use crate::{
    mig::Shape,
    pci::{PciAddress, PciPath},
};

/// NVML's `NVML_NVLINK_MAX_LINKS`.
const MOST_LINKS: u32 = 18;

/// The first thing found wrong with an entry of a profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{entry}: {wrong}")]
pub struct Problem {
    /// Which entry.
    pub entry: Entry,
    /// What is wrong with it.
    pub wrong: Wrong,
}

/// An entry of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Entry {
    /// The document as a whole.
    #[error("the machine")]
    Machine,
    /// `gpus[n]`.
    #[error("gpus[{0}]")]
    Gpu(usize),
    /// `switches[n]`.
    #[error("switches[{0}]")]
    Switch(usize),
    /// `nics[n]`.
    #[error("nics[{0}]")]
    Nic(usize),
}

/// What can be wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Wrong {
    /// Every machine has memory somewhere.
    #[error("it has no NUMA node")]
    NoNuma,
    /// No such card, or several to choose from.
    #[error("its card must be one of {0}")]
    Card(String),
    /// No such node.
    #[error("there is no NUMA node {0}")]
    Numa(u32),
    /// Two functions in one place.
    #[error("PCI address {0} is taken by an earlier entry")]
    Address(PciAddress),
    /// One function in two places, or a device that is a bridge elsewhere.
    #[error("PCI address {0} is elsewhere in an earlier entry")]
    Moved(PciAddress),
    /// NVML numbers GPUs by address.
    #[error("PCI address {0} comes before that of the GPU above: list GPUs in PCI order")]
    Order(PciAddress),
    /// Two GPUs with one name.
    #[error("{0} `{1}` is that of an earlier GPU")]
    Taken(&'static str, String),
    /// A link to nowhere, or to itself.
    #[error("there is no other GPU {0} to link with")]
    Peer(usize),
    /// A link has two ends.
    #[error("it has {0} links to GPU {1}, which has {2} to it")]
    Asymmetric(u8, usize, u8),
    /// No such switch.
    #[error("there is no switch {0}")]
    Switch(usize),
    /// More links in use than ports.
    #[error("it uses {0} NVLinks, its card has {1}")]
    Links(u32, u32),
    /// MIG is on, and the card has none.
    #[error("its card has no MIG: leave out `mig`")]
    NoMig,
    /// No card of ours is cut so.
    #[error("its card has no MIG profile `{0}`")]
    MigProfile(String),
    /// The instances do not fit side by side.
    #[error("there is no room left for MIG instance `{0}`")]
    MigRoom(String),
}

/// Every reason why there cannot be such a machine; the first one found.
pub(super) fn validate(profile: &Profile) -> Result<(), Problem> {
    if profile.numa.is_empty() {
        return Err(Problem { entry: Entry::Machine, wrong: Wrong::NoNuma });
    }
    places(profile)?;
    names(profile)?;
    for (index, gpu) in profile.gpus.iter().enumerate() {
        let problem = |wrong| Problem { entry: Entry::Gpu(index), wrong };
        links(profile, index, gpu).map_err(problem)?;
        mig(profile, gpu).map_err(problem)?;
    }
    Ok(())
}

/// The line on which an entry begins.
pub(super) fn line_of(problem: &Problem, yaml: &str) -> u64 {
    #[derive(Default, Deserialize)]
    struct Lines {
        gpus: Vec<Spanned<IgnoredAny>>,
        #[serde(default)]
        switches: Vec<Spanned<IgnoredAny>>,
        #[serde(default)]
        nics: Vec<Spanned<IgnoredAny>>,
    }
    let lines: Lines = serde_saphyr::from_str(yaml).unwrap_or_default();
    let entry = match problem.entry {
        Entry::Machine => None,
        Entry::Gpu(index) => lines.gpus.get(index),
        Entry::Switch(index) => lines.switches.get(index),
        Entry::Nic(index) => lines.nics.get(index),
    };
    entry.map_or(1, |entry| entry.defined.line())
}

/// NUMA nodes exist, addresses differ, GPUs are in order.
fn places(profile: &Profile) -> Result<(), Problem> {
    let mut taken = Vec::new();
    let mut above = BTreeMap::new();
    for (entry, path, numa) in functions(profile) {
        let problem = |wrong| Problem { entry, wrong };
        if let Some(node) = numa.filter(|node| *node as usize >= profile.numa.len()) {
            return Err(problem(Wrong::Numa(node)));
        }
        let address = path.address();
        if taken.contains(&address) {
            return Err(problem(Wrong::Address(address)));
        }
        if matches!(entry, Entry::Gpu(_)) && taken.last() > Some(&address) {
            return Err(problem(Wrong::Order(address)));
        }
        if let Some(moved) = moved(&mut above, path) {
            return Err(problem(Wrong::Moved(moved)));
        }
        taken.push(address);
    }
    Ok(())
}

/// Notes which function is above which; an address that already has another one above it.
fn moved<'a>(
    above: &mut BTreeMap<PciAddress, (&'a str, Option<PciAddress>)>,
    path: &'a PciPath,
) -> Option<PciAddress> {
    let mut parent = None;
    for step in path.steps() {
        let place = (path.root(), parent);
        if *above.entry(*step).or_insert(place) != place {
            return Some(*step);
        }
        parent = Some(*step);
    }
    None
}

/// Every PCI function with its entry, GPUs first.
fn functions(profile: &Profile) -> impl Iterator<Item = (Entry, &PciPath, Option<u32>)> {
    let gpus = profile.gpus.iter().enumerate();
    let switches = profile.switches.iter().enumerate();
    let nics = profile.nics.iter().enumerate();
    gpus.map(|(n, gpu)| (Entry::Gpu(n), &gpu.path, gpu.numa))
        .chain(
            switches.filter_map(|(n, switch)| {
                Some((Entry::Switch(n), switch.path.as_ref()?, switch.numa))
            }),
        )
        .chain(nics.map(|(n, nic)| (Entry::Nic(n), &nic.path, nic.numa)))
}

/// No two GPUs share a UUID, a serial number or a minor number.
fn names(profile: &Profile) -> Result<(), Problem> {
    let mut taken = BTreeMap::new();
    for (index, gpu) in profile.gpus.iter().enumerate() {
        let minor = gpu.minor.map_or_else(|| index.to_string(), |minor| minor.to_string());
        let names = [("uuid", &gpu.uuid), ("serial", &gpu.serial), ("minor", &Some(minor))];
        for (what, name) in names {
            let Some(name) = name else { continue };
            if taken.insert((what, name.clone()), index).is_some() {
                let wrong = Wrong::Taken(what, name.clone());
                return Err(Problem { entry: Entry::Gpu(index), wrong });
            }
        }
    }
    Ok(())
}

/// The card exists, links have two ends, and there are ports for them.
fn links(profile: &Profile, index: usize, gpu: &GpuPlace) -> Result<(), Wrong> {
    let known = || profile.cards.keys().cloned().collect::<Vec<_>>().join(", ");
    let card = profile.card_of(gpu).ok_or_else(|| Wrong::Card(known()))?;
    for (&peer, &count) in &gpu.peers {
        let other = profile.gpus.get(peer).filter(|_| peer != index).ok_or(Wrong::Peer(peer))?;
        let back = other.peers.get(&index).copied().unwrap_or(0);
        if back != count {
            return Err(Wrong::Asymmetric(count, peer, back));
        }
    }
    let missing = |switch: &&usize| **switch >= profile.switches.len();
    if let Some(switch) = gpu.switches.iter().flatten().find(missing) {
        return Err(Wrong::Switch(*switch));
    }
    let used = gpu.peers.values().map(|count| u32::from(*count)).sum();
    let ports = card.nvlink.map_or(0, |ports| u32::from(ports.links)).min(MOST_LINKS);
    if used > ports { Err(Wrong::Links(used, ports)) } else { Ok(()) }
}

/// The instances exist on the card and fit side by side.
fn mig(profile: &Profile, gpu: &GpuPlace) -> Result<(), Wrong> {
    let Some(names) = &gpu.mig else { return Ok(()) };
    let capability = profile.card_of(gpu).and_then(|card| card.mig).ok_or(Wrong::NoMig)?;
    let mut shapes = Vec::new();
    for name in names {
        let shape = Shape::named(name, capability);
        shapes.push(shape.ok_or_else(|| Wrong::MigProfile(name.clone()))?);
        if crate::mig::place(&shapes).is_none() {
            return Err(Wrong::MigRoom(name.clone()));
        }
    }
    Ok(())
}
