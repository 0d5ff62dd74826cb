//! The fake host tree: what sysfs, procfs and /dev show of a machine, as the real kernel shows it.
//!
//! A tree is a pure function of the model. A machine that changes is two trees, and what differs
//! between them is all that is touched on disk: the files of a healthy GPU stay the files they are.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
};

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

use crate::{
    machine::{MachineError, act},
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

/// Says that a host is simulated; holds the name of the profile.
pub(crate) const MARKER: &str = "run/windlass/simulated";

/// Where an entry is made before it is moved into its place.
const NEW: &str = ".new";

/// Folders that stay when the last entry in them goes, because a kernel always has them.
const STANDING: [&str; 7] = [
    "dev",
    "proc/driver",
    "run",
    "sys/bus/pci/devices",
    "sys/bus/pci/drivers",
    "sys/devices",
    "sys/module",
];

/// What a machine shows below the folder that stands for `/`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tree {
    entries: BTreeMap<PathBuf, Entry>,
}

/// Something in a folder. In the order in which they are made: what leads to a folder comes after
/// what is in it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Entry {
    /// A file with lines in it, or what else a device answers.
    File(Vec<u8>),
    /// A program, as text that an interpreter reads.
    Program(&'static str),
    /// A symbolic link, with its target as written.
    Link(PathBuf),
    /// A device node that behaves as /dev/null.
    Device,
}

// === impl Tree ===

impl Tree {
    /// Everything that a model shows.
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
        tree.happened(model);
        if let Some(driver) = model.loaded_driver() {
            tree.driver(model, driver);
            tree.programs();
            tree.installation(driver);
        }
        tree
    }

    /// Makes the folder show this tree, which shows `before` until now.
    pub(crate) fn replace(&self, before: &Self, root: &Path) -> Result<(), MachineError> {
        before.leave(self, root)?;
        let mut new: Vec<_> = self
            .entries
            .iter()
            .filter(|(path, entry)| before.entries.get(*path) != Some(entry))
            .collect();
        // The marker first: a folder with anything of ours in it says whose it is.
        new.sort_by_key(|(path, entry)| (path.as_path() != Path::new(MARKER), *entry));
        new.into_iter().try_for_each(|(path, entry)| entry.make(root, path))
    }

    /// Removes what is not in the next tree, links before the folders they lead to, and the folders
    /// that are empty after that.
    fn leave(&self, next: &Self, root: &Path) -> Result<(), MachineError> {
        let mut gone: Vec<_> =
            self.entries.iter().filter(|(path, _)| !next.entries.contains_key(*path)).collect();
        gone.sort_by_key(|(_, entry)| std::cmp::Reverse(*entry));
        for (path, _) in &gone {
            act("remove", &root.join(path), |path| {
                unless(io::ErrorKind::NotFound, fs::remove_file(path))
            })?;
        }
        let folders: BTreeSet<_> =
            gone.iter().flat_map(|(path, _)| path.ancestors().skip(1)).collect();
        let standing =
            |folder: &Path| STANDING.iter().any(|name| Path::new(name).starts_with(folder));
        // Deepest first; one that still has entries refuses, and so it should.
        for folder in folders.into_iter().rev().filter(|folder| !standing(folder)) {
            let _ = fs::remove_dir(root.join(folder));
        }
        Ok(())
    }

    /// Files that are not as the profile says.
    fn happened(&mut self, model: &Model) {
        for (name, happened) in &model.happened {
            let Some(folder) = model.folder_of(name).filter(|folder| self.has(folder)) else {
                continue;
            };
            for (path, text) in &happened.files {
                let path = folder.join(path);
                match text {
                    Some(text) => self.file(&path, text),
                    None => self.entries.retain(|other, _| !other.starts_with(&path)),
                }
            }
        }
    }

    /// A file with a line in it.
    fn file(&mut self, path: impl AsRef<Path>, line: &str) {
        self.bytes(path, format!("{line}\n").into_bytes());
    }

    /// A file that is no text.
    fn bytes(&mut self, path: impl AsRef<Path>, content: Vec<u8>) {
        self.entries.insert(path.as_ref().to_owned(), Entry::File(content));
    }

    /// A file for each name, with a line in it.
    fn files(&mut self, folder: &Path, lines: &[(&str, &str)]) {
        for (name, line) in lines {
            self.file(folder.join(name), line);
        }
    }

    /// A program that anyone may run.
    fn program(&mut self, path: &Path, text: &'static str) {
        self.entries.insert(path.to_owned(), Entry::Program(text));
    }

    /// A symbolic link to another path of the tree, relative as sysfs has them.
    fn link(&mut self, path: impl AsRef<Path>, target: &Path) {
        let path = path.as_ref();
        let above = |path: &Path| path.parent().unwrap_or(Path::new("")).to_owned();
        // Of the target, the kernel always writes the name.
        let (folder, beside) = (above(path), above(target));
        let pairs = folder.components().zip(beside.components());
        let shared = pairs.take_while(|(a, b)| a == b).count();
        let up = folder.components().skip(shared).map(|_| Path::new(".."));
        let down = target.components().skip(shared).map(|part| Path::new(part.as_os_str()));
        let way: PathBuf = up.chain(down).collect();
        self.entries.insert(path.to_owned(), Entry::Link(way));
    }

    /// A symbolic link with its target as udev and packages write it, from the link's own folder.
    fn link_beside(&mut self, path: impl AsRef<Path>, target: impl Into<PathBuf>) {
        self.entries.insert(path.as_ref().to_owned(), Entry::Link(target.into()));
    }

    fn device(&mut self, path: &str) {
        self.entries.insert(PathBuf::from(path), Entry::Device);
    }

    /// Whether something is in a folder.
    fn has(&self, folder: &Path) -> bool {
        let mut behind = self.entries.range(folder.to_owned()..);
        behind.next().is_some_and(|(path, _)| path.starts_with(folder))
    }
}

// === impl Entry ===

impl Entry {
    /// Makes the entry elsewhere and moves it, so that a reader sees all of it or none.
    fn make(&self, root: &Path, path: &Path) -> Result<(), MachineError> {
        let path = root.join(path);
        let folder = path.parent().unwrap_or(root);
        act("create", folder, fs::create_dir_all)?;
        let new = root.join(NEW);
        act("remove", &new, |new| unless(io::ErrorKind::NotFound, fs::remove_file(new)))?;
        match self {
            Self::File(content) => act("write", &new, |new| fs::write(new, content))?,
            Self::Program(text) => act("write", &new, |new| program(new, text))?,
            Self::Link(target) => act("link", &new, |new| symlink(target, new))?,
            Self::Device => act("make device node", &new, device)?,
        }
        act("replace", &path, |path| fs::rename(&new, path))
    }
}

fn program(path: &Path, text: &str) -> io::Result<()> {
    fs::write(path, text)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}

/// A device node that behaves as /dev/null; a plain file where the kernel forbids nodes.
fn device(path: &Path) -> io::Result<()> {
    let everyone = Mode::from_raw_mode(0o666);
    if mknodat(CWD, path, FileType::CharacterDevice, everyone, makedev(1, 3)).is_err() {
        fs::write(path, "")?;
    }
    // Once more, because the umask takes bits away.
    fs::set_permissions(path, fs::Permissions::from_mode(0o666))
}

/// Takes one kind of error for success.
pub(crate) fn unless(kind: io::ErrorKind, result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == kind => Ok(()),
        other => other,
    }
}
