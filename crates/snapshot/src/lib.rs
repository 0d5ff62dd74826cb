//! A snapshot of a host: what its kernel shows of its devices, as a tree of files that can be carried away
//! and looked at elsewhere.
//!
//! Data goes one way: `walk` reads the host into a [`Recording`], `disguise` replaces what identifies the
//! machine, `shelf` writes it to a folder. That folder can stand for the host, with `--host-root`.
//!
//! The shape of sysfs is recorded as a whole, since discovery is about what lies below what. Of the files
//! only those in the list of `worth` are read: one that is not in it may be a secret, may make hardware do
//! something, or may never answer.

mod disguise;
mod reader;
mod shelf;
mod walk;
mod worth;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::Duration,
};

use serde::Serialize;
use windlass_config::{Find, Policy, Test};
use windlass_core::inventory::Inventory;
use windlass_host::Host;

pub use disguise::Disguise;
pub use shelf::RecordError;

/// What was read of a host, by path below its root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    entries: BTreeMap<PathBuf, Entry>,
    /// What is not in it, and why.
    pub left_out: Vec<LeftOut>,
}

/// Something in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Entry {
    /// A folder, listed for those that are empty.
    Folder,
    /// A file's text.
    Text(String),
    /// A link, as written.
    Link(PathBuf),
    /// A device node, of which only the name is kept.
    Node,
}

/// Something that is missing from a recording though it would be worth having.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LeftOut {
    /// Its path on the host.
    pub path: PathBuf,
    /// Why.
    pub why: String,
}

/// How much is read at most. A recording that is cut short says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Files, folders and links.
    pub entries: usize,
    /// Text in all.
    pub bytes: usize,
    /// Text of one file; a longer one is left out.
    pub bytes_of_file: usize,
    /// Time in all.
    pub time: Duration,
    /// Time for one file, which a device's firmware may have to answer.
    pub time_of_file: Duration,
}

/// What to read besides what is always read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Also {
    /// Names of files in sysfs.
    names: BTreeSet<String>,
    /// Folders of which the files are devices; their text is not read.
    folders: BTreeSet<PathBuf>,
    /// What containers are given of the host, of which it only matters whether it is there.
    mounts: BTreeSet<PathBuf>,
}

// === impl Recording ===

impl Recording {
    /// Reads the host. May block; `seen` is told now and then how many entries there are so far.
    pub fn of(host: &Host, also: &Also, bounds: Bounds, seen: &mut dyn FnMut(usize)) -> Self {
        walk::walk(host, also, bounds, seen)
    }

    /// How many files, folders and links it has.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing was there.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

// === impl Also ===

impl Also {
    /// What the sources that a configuration describes read.
    pub fn for_policy(policy: &Policy) -> Self {
        let mut also = Self::default();
        for rule in &policy.sources {
            let probed = rule.probe.as_ref().and_then(|probe| match &probe.test {
                Test::Attribute { file, .. } => Some(file),
                _ => None,
            });
            let files = rule.attributes.values().chain(probed);
            let names = files.filter_map(|file| file.file_name()?.to_str().map(str::to_owned));
            also.names.extend(names);
            if let Find::Files(folder) = &rule.find {
                also.folders.insert(folder.clone());
            }
        }
        also
    }

    /// And what the devices that were found bring along.
    #[must_use]
    pub fn with_mounts_of(mut self, inventory: &Inventory) -> Self {
        let mounts = inventory.devices.iter().flat_map(|device| &device.extras.mounts);
        self.mounts.extend(mounts.map(|mount| mount.host.clone()));
        self
    }
}

// === impl Bounds ===

impl Default for Bounds {
    /// Far beyond any machine: eight MI300 cut to the utmost have 4,000 entries in the recordings of AMD's plugin.
    fn default() -> Self {
        Self {
            entries: 300_000,
            bytes: 64 << 20,
            bytes_of_file: 64 << 10,
            time: Duration::from_secs(60),
            time_of_file: Duration::from_secs(2),
        }
    }
}

#[cfg(test)]
mod tests;
