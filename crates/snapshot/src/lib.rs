//! Snapshot of a host: the kernel's view of its devices, as a tree of files for use on other machines.
//!
//! `walk` reads the host into a [`Snapshot`], `anonymise` replaces identifying text, `folder` writes the
//! result. Commands accept that folder with `--host-root`.
//!
//! Within the allowed folders the tree of sysfs is complete, since discovery depends on its structure. The snapshot has
//! the content only of files whose names are in `allowlist`: other files may be secret, and a read may change hardware
//! or hang.

mod allowlist;
mod anonymise;
mod folder;
mod reader;
mod walk;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::Duration,
};

use serde::Serialize;
use windlass_config::{DiscoveryRule, Policy, ProbeTest};
use windlass_core::inventory::Inventory;
use windlass_host::Host;

pub use anonymise::Anonymiser;
pub use folder::SnapshotError;

/// Files of a host, by path below its root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    entries: BTreeMap<PathBuf, Entry>,
    /// Entries that could not be read or were cut off, with reasons.
    pub omissions: Vec<Omission>,
}

/// An entry of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Entry {
    /// A folder, which may be empty.
    Folder,
    /// A file's text.
    Text(String),
    /// A symbolic link, as written.
    Link(PathBuf),
    /// A device node, as an empty file.
    Node,
}

/// An entry that is missing in the snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Omission {
    /// Path on the host.
    pub path: PathBuf,
    /// Reason why the entry is missing.
    pub why: String,
}

/// Limits of a snapshot. A snapshot that reached a limit has an omission that names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotLimits {
    /// Maximum number of files, folders and links.
    pub max_entries: usize,
    /// Maximum size of all text, in bytes.
    pub max_bytes: usize,
    /// Maximum size of a file, in bytes. A larger file is omitted.
    pub max_file_bytes: usize,
    /// Time limit of the walk.
    pub walk_timeout: Duration,
    /// Time limit of each file. The kernel may wait for firmware to read some files.
    pub file_timeout: Duration,
}

/// Additional files, which the allowlist does not have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtraFiles {
    /// Names of files in sysfs to read.
    names: BTreeSet<String>,
    /// Folders whose files stand for devices. The snapshot has only the names of the files.
    folders: BTreeSet<PathBuf>,
    /// Mounts of containers. The snapshot has only their paths, without content.
    mounts: BTreeSet<PathBuf>,
}

// === impl Snapshot ===

impl Snapshot {
    /// Reads the host. Blocks. Calls `progress` with the number of entries, every few hundred entries.
    pub fn capture(
        host: &Host,
        extra: &ExtraFiles,
        limits: SnapshotLimits,
        progress: &mut dyn FnMut(usize),
    ) -> Self {
        walk::walk(host, extra, limits, progress)
    }

    /// Number of files, folders and links.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if the snapshot has no entry.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

// === impl ExtraFiles ===

impl ExtraFiles {
    /// Files of the configured sources.
    pub fn for_policy(policy: &Policy) -> Self {
        let mut extra = Self::default();
        for rule in &policy.sources {
            let probed = rule.probe.as_ref().and_then(|probe| match &probe.test {
                ProbeTest::Attribute { file, .. } => Some(file),
                _ => None,
            });
            let files = rule.attributes.values().chain(probed);
            let names = files.filter_map(|file| file.file_name()?.to_str().map(str::to_owned));
            extra.names.extend(names);
            if let DiscoveryRule::Files(folder) = &rule.find {
                extra.folders.insert(folder.clone());
            }
        }
        extra
    }

    /// Adds the mounts of discovered devices.
    #[must_use]
    pub fn with_mounts_of(mut self, inventory: &Inventory) -> Self {
        let mounts = inventory.devices.iter().flat_map(|device| &device.extras.mounts);
        self.mounts.extend(mounts.map(|mount| mount.host.clone()));
        self
    }
}

// === impl SnapshotLimits ===

impl Default for SnapshotLimits {
    /// Limits far above the size of any machine. Eight fully partitioned MI300 have 4,000 entries in the recordings of
    /// AMD's plugin.
    fn default() -> Self {
        Self {
            max_entries: 300_000,
            max_bytes: 64 << 20,
            max_file_bytes: 64 << 10,
            walk_timeout: Duration::from_secs(60),
            file_timeout: Duration::from_secs(2),
        }
    }
}

#[cfg(test)]
mod tests;
