//! The fake host tree: what sysfs, procfs and /dev show of a machine, as the real kernel shows it.

use std::{
    fs, io,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
};

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

use crate::{
    machine::{MachineError, act},
    state::{Gpu, Model},
};

mod network;
mod nvidia;
mod pci;
mod platform;

/// Says that a host is simulated; holds the name of the profile.
const MARKER: &str = "run/windlass/simulated";

/// A folder that stands for `/`.
#[derive(Debug)]
pub(crate) struct Tree {
    root: PathBuf,
}

// === impl Tree ===

impl Tree {
    pub(crate) fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// Everything that a model shows, in a folder that is empty or missing.
    pub(crate) fn write(&self, model: &Model) -> Result<(), MachineError> {
        self.file(MARKER, &model.profile)?;
        self.write_platform(model)?;
        model.gpus.iter().try_for_each(|gpu| self.write_gpu_function(model, gpu))?;
        model.switches.iter().try_for_each(|switch| self.write_switch(model, switch))?;
        model
            .nics
            .iter()
            .enumerate()
            .try_for_each(|(index, nic)| self.write_nic(model, (index, nic)))?;
        self.add_driver(model)
    }

    /// A GPU that was plugged in.
    pub(crate) fn add_gpu(&self, model: &Model, gpu: &Gpu) -> Result<(), MachineError> {
        self.write_gpu_function(model, gpu)?;
        if model.driver_loaded { self.add_driver(model) } else { Ok(()) }
    }

    /// A GPU that was pulled out.
    pub(crate) fn remove_gpu(&self, gpu: &Gpu) -> Result<(), MachineError> {
        self.remove_gpu_driver(gpu)?;
        self.remove_function(&gpu.path)
    }

    /// A file with a line in it.
    fn file(&self, path: impl AsRef<Path>, line: &str) -> Result<(), MachineError> {
        let path = self.parent_of(path)?;
        act("write", &path, |path| fs::write(path, format!("{line}\n")))
    }

    /// A file for each name, with a line in it.
    fn files(&self, folder: &Path, lines: &[(&str, &str)]) -> Result<(), MachineError> {
        lines.iter().try_for_each(|(name, line)| self.file(folder.join(name), line))
    }

    /// A symbolic link to another path of the tree, relative as sysfs has them.
    fn link(&self, path: impl AsRef<Path>, target: &Path) -> Result<(), MachineError> {
        let folder = path.as_ref().parent().unwrap_or(Path::new(""));
        let up = folder.components().map(|_| "..").collect::<PathBuf>();
        let path = self.parent_of(&path)?;
        act("link", &path, |path| match symlink(up.join(target), path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other,
        })
    }

    /// A device node that behaves as /dev/null; a plain file where the kernel forbids nodes.
    fn device(&self, path: &str) -> Result<(), MachineError> {
        let path = self.parent_of(path)?;
        let everyone = Mode::from_raw_mode(0o666);
        let null = makedev(1, 3);
        act("make device node", &path, |path| {
            match mknodat(CWD, path, FileType::CharacterDevice, everyone, null) {
                Err(rustix::io::Errno::EXIST) => return Ok(()),
                Err(_) => fs::write(path, "")?,
                Ok(()) => {}
            }
            // Once more, because the umask takes bits away.
            fs::set_permissions(path, fs::Permissions::from_mode(0o666))
        })
    }

    /// Whether something is at a path.
    fn has(&self, path: &Path) -> bool {
        self.root.join(path).exists()
    }

    /// Removes a file, a link or a folder with all that is in it; fine if there is none.
    fn remove(&self, path: impl AsRef<Path>) -> Result<(), MachineError> {
        act("remove", &self.root.join(path), |path| {
            let removed = match fs::symlink_metadata(path) {
                Ok(found) if found.is_dir() => fs::remove_dir_all(path),
                _ => fs::remove_file(path),
            };
            match removed {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                other => other,
            }
        })
    }

    /// The path below the root, with its folder made.
    fn parent_of(&self, path: impl AsRef<Path>) -> Result<PathBuf, MachineError> {
        let path = self.root.join(path);
        let folder = path.parent().unwrap_or(&self.root);
        act("create", folder, fs::create_dir_all)?;
        Ok(path)
    }
}
