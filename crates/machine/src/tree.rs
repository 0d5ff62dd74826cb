//! Fake host tree: the kernel's sysfs, procfs and /dev for a machine.
//!
//! A tree is a pure function of the model. A change compares two trees and writes only the differences to disk. The
//! files of other devices keep their inodes.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
};

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

use crate::{
    machine::{MachineError, with_path},
    state::Model,
};
use class::ClassDevice;

mod class;
mod config_space;
mod device;
mod installation;
mod iommu;
mod network;
mod nvidia;
mod pci;
mod platform;
mod programs;
mod rdma;
mod route;

/// Marker of a simulated host. Its content is the name of the profile.
pub(crate) const MARKER: &str = "run/windlass/simulated";

/// Temporary path of an entry before its rename.
const TEMPORARY_NAME: &str = ".new";

/// Folders that are kept when empty, because every kernel has them.
const PERMANENT_FOLDERS: &[&str] = &[
    "dev",
    "proc/driver",
    "run",
    "sys/bus/pci/devices",
    "sys/bus/pci/drivers",
    "sys/devices",
    "sys/module",
];

/// Entries of a host, by path below its root folder.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tree {
    entries: BTreeMap<PathBuf, Entry>,
}

/// Entry of a folder. The order of variants is the order of creation: links come after the entries of their
/// target folder.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Entry {
    /// File with lines of text, or with other content of a device.
    File(Vec<u8>),
    /// Program, as text for an interpreter.
    Program(&'static str),
    /// Symbolic link, with its literal target.
    Link(PathBuf),
    /// Device node that behaves like /dev/null.
    Device,
}

// === impl Tree ===

impl Tree {
    /// Complete tree of a model.
    pub(crate) fn of(model: &Model) -> Self {
        let mut tree = Self::default();
        tree.file(MARKER, &model.profile);
        tree.platform(model);
        tree.shared_memory();
        for gpu in &model.gpus {
            tree.gpu_function(model, gpu);
        }
        for switch in &model.switches {
            tree.switch(model, switch);
        }
        tree.adapters(model);
        for device in model.devices.iter().filter(|device| model.is_plugged(&device.name)) {
            tree.any_device(model, device);
        }
        tree.apply_device_changes(model);
        if let Some(driver) = model.loaded_driver() {
            tree.driver(model, driver);
            tree.programs();
            tree.installation(driver);
        }
        tree
    }

    /// Updates the folder from the tree `before` to this tree.
    pub(crate) fn update_folder(&self, before: &Self, root: &Path) -> Result<(), MachineError> {
        before.remove_missing(self, root)?;
        let mut changed: Vec<_> = self
            .entries
            .iter()
            .filter(|(path, entry)| before.entries.get(*path) != Some(entry))
            .collect();
        // The marker comes first, so that every partial tree is recognisable.
        changed.sort_by_key(|(path, entry)| (path.as_path() != Path::new(MARKER), *entry));
        changed.into_iter().try_for_each(|(path, entry)| entry.create(root, path))
    }

    /// Removes the entries that the next tree lacks, in reverse order of creation, and then empty folders.
    fn remove_missing(&self, next: &Self, root: &Path) -> Result<(), MachineError> {
        let mut missing: Vec<_> =
            self.entries.iter().filter(|(path, _)| !next.entries.contains_key(*path)).collect();
        missing.sort_by_key(|(_, entry)| std::cmp::Reverse(*entry));
        for (path, _) in &missing {
            with_path("remove", &root.join(path), |path| {
                ignore_error_kind(io::ErrorKind::NotFound, fs::remove_file(path))
            })?;
        }
        let folders: BTreeSet<_> =
            missing.iter().flat_map(|(path, _)| path.ancestors().skip(1)).collect();
        let is_permanent = |folder: &Path| {
            PERMANENT_FOLDERS.iter().any(|name| Path::new(name).starts_with(folder))
        };
        // Deepest folders come first. The kernel refuses to remove a folder that still has entries.
        for folder in folders.into_iter().rev().filter(|folder| !is_permanent(folder)) {
            let _ = fs::remove_dir(root.join(folder));
        }
        Ok(())
    }

    /// Applies changed files of devices.
    fn apply_device_changes(&mut self, model: &Model) {
        for (name, changes) in &model.happened {
            let Some(folder) = model.folder_of(name).filter(|folder| self.has(folder)) else {
                continue;
            };
            for (path, text) in &changes.files {
                let path = folder.join(path);
                match text {
                    Some(text) => self.file(&path, text),
                    None => self.entries.retain(|other, _| !other.starts_with(&path)),
                }
            }
        }
    }

    /// Adds a file with one line.
    fn file(&mut self, path: impl AsRef<Path>, line: &str) {
        self.binary_file(path, format!("{line}\n").into_bytes());
    }

    /// Adds a binary file.
    fn binary_file(&mut self, path: impl AsRef<Path>, content: Vec<u8>) {
        self.entries.insert(path.as_ref().to_owned(), Entry::File(content));
    }

    /// Adds a file with one line for each name.
    fn files(&mut self, folder: &Path, lines: &[(&str, &str)]) {
        for (name, line) in lines {
            self.file(folder.join(name), line);
        }
    }

    /// Adds an executable program.
    fn program(&mut self, path: &Path, text: &'static str) {
        self.entries.insert(path.to_owned(), Entry::Program(text));
    }

    /// Adds a link to another path of the tree, relative as in sysfs.
    fn link(&mut self, path: impl AsRef<Path>, target: &Path) {
        let path = path.as_ref();
        let parent = |path: &Path| path.parent().unwrap_or(Path::new("")).to_owned();
        // The kernel ends a link with the target's name, even where `..` would suffice.
        let (folder, target_folder) = (parent(path), parent(target));
        let pairs = folder.components().zip(target_folder.components());
        let shared = pairs.take_while(|(a, b)| a == b).count();
        let up = folder.components().skip(shared).map(|_| Path::new(".."));
        let down = target.components().skip(shared).map(|part| Path::new(part.as_os_str()));
        let relative: PathBuf = up.chain(down).collect();
        self.entries.insert(path.to_owned(), Entry::Link(relative));
    }

    /// Adds a link with a literal target relative to the link's folder, as udev and packages write it.
    fn link_literal(&mut self, path: impl AsRef<Path>, target: impl Into<PathBuf>) {
        self.entries.insert(path.as_ref().to_owned(), Entry::Link(target.into()));
    }

    fn device(&mut self, path: &str) {
        self.entries.insert(PathBuf::from(path), Entry::Device);
    }

    /// True if the folder contains an entry.
    fn has(&self, folder: &Path) -> bool {
        let mut following = self.entries.range(folder.to_owned()..);
        following.next().is_some_and(|(path, _)| path.starts_with(folder))
    }
}

// === impl Entry ===

impl Entry {
    /// Creates the entry at a temporary path and renames it, so that readers never see a partial entry.
    fn create(&self, root: &Path, path: &Path) -> Result<(), MachineError> {
        let path = root.join(path);
        let folder = path.parent().unwrap_or(root);
        with_path("create", folder, fs::create_dir_all)?;
        let temporary = root.join(TEMPORARY_NAME);
        with_path("remove", &temporary, |path| {
            ignore_error_kind(io::ErrorKind::NotFound, fs::remove_file(path))
        })?;
        match self {
            Self::File(content) => with_path("write", &temporary, |path| fs::write(path, content))?,
            Self::Program(text) => with_path("write", &temporary, |path| program(path, text))?,
            Self::Link(target) => with_path("link", &temporary, |path| symlink(target, path))?,
            Self::Device => with_path("make device node", &temporary, device)?,
        }
        with_path("replace", &path, |path| fs::rename(&temporary, path))
    }
}

fn program(path: &Path, text: &str) -> io::Result<()> {
    fs::write(path, text)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}

/// Creates a device node like /dev/null; a plain file where the kernel forbids device nodes.
fn device(path: &Path) -> io::Result<()> {
    let mode = Mode::from_raw_mode(0o666);
    if mknodat(CWD, path, FileType::CharacterDevice, mode, makedev(1, 3)).is_err() {
        fs::write(path, "")?;
    }
    // Set the mode again, because the umask removes bits.
    fs::set_permissions(path, fs::Permissions::from_mode(0o666))
}

/// Treats one kind of error as success.
pub(crate) fn ignore_error_kind(kind: io::ErrorKind, result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == kind => Ok(()),
        outcome => outcome,
    }
}
