//! A simulated machine on disk: made, opened, and changed while others read it.
//!
//! ```text
//! dir/
//!   host/                  what the kernel shows: sys, proc, dev, run
//!   libnvidia-ml.so.1      this machine's own copy of the simulated driver
//!   state.json             the model; replaced by rename, never written in place
//!   state.lock             held by whoever changes the model
//! ```
//!
//! Each machine has a copy of the driver because glibc tells libraries apart by inode: a link would
//! give two machines in one process the same instance.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use crate::{
    fault::{Fault, FaultError},
    profile::{Problem, Profile},
    state::Model,
    tree::Tree,
};

const HOST: &str = "host";
const LIBRARY: &str = "libnvidia-ml.so.1";
/// What some clients load; a link to [`LIBRARY`], which dangles while there is no driver.
const UNVERSIONED_LIBRARY: &str = "libnvidia-ml.so";
const SPARE_LIBRARY: &str = ".removed-libnvidia-ml.so.1";
const STATE: &str = "state.json";
const LOCK: &str = "state.lock";

/// A folder that looks like a machine.
#[derive(Clone, Debug)]
pub struct Machine {
    dir: PathBuf,
}

/// Why a machine could not be made, read or changed.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// The profile describes no machine.
    #[error("profile {profile} describes a machine that cannot be")]
    Profile {
        /// Its name.
        profile: String,
        /// What is wrong.
        source: Problem,
    },
    /// The simulated driver is not built or not installed.
    #[error(
        "the simulated driver is not at {places}; build it with `cargo build -p windlass-nvml-sim`, \
         or set WINDLASS_SIM_DRIVER to its path"
    )]
    NoDriver {
        /// Where it was looked for.
        places: String,
    },
    /// The kernel refused.
    #[error("cannot {action} {path}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Not a state that this version wrote.
    #[error("cannot read the machine's state {path}")]
    State {
        /// The file.
        path: PathBuf,
        /// What the parser says.
        source: serde_json::Error,
    },
    /// The fault does not fit the machine.
    #[error("cannot inject a fault")]
    Fault(#[from] FaultError),
}

// === impl Machine ===

impl Machine {
    /// Makes a machine in a folder, with `driver` as its NVML library: see
    /// [`crate::simulated_driver`].
    ///
    /// The folder is created; what an earlier machine left there is replaced.
    pub fn create(dir: &Path, profile: &Profile, driver: &Path) -> Result<Self, MachineError> {
        let model = Model::new(profile)
            .map_err(|source| MachineError::Profile { profile: profile.name.clone(), source })?;
        act("create", dir, fs::create_dir_all)?;
        let dir = act("resolve", dir, fs::canonicalize)?;
        let machine = Self { dir };
        let host = machine.host_root();
        if host.exists() {
            act("remove", &host, fs::remove_dir_all)?;
        }
        Tree::new(&host).write(&model)?;
        machine.copy_library(driver)?;
        machine.link_library()?;
        machine.store(&model)?;
        Ok(machine)
    }

    /// A machine that was made earlier, perhaps by another process.
    pub fn open(dir: &Path) -> Result<Self, MachineError> {
        let machine = Self { dir: act("open machine", dir, fs::canonicalize)? };
        machine.model()?;
        Ok(machine)
    }

    /// Its folder, as an absolute path.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What stands for `/`: sysfs is at `sys` below it.
    pub fn host_root(&self) -> PathBuf {
        self.dir.join(HOST)
    }

    /// Its NVML library.
    pub fn nvml_library(&self) -> PathBuf {
        self.dir.join(LIBRARY)
    }

    /// The file that the library reads.
    pub fn state_file(&self) -> PathBuf {
        self.dir.join(STATE)
    }

    /// The machine as it is now.
    pub fn model(&self) -> Result<Model, MachineError> {
        let path = self.state_file();
        let json = act("read", &path, fs::read)?;
        serde_json::from_slice(&json).map_err(|source| MachineError::State { path, source })
    }

    /// Lets a fault happen, to the state and to the fake tree. Whoever waits for an NVML event is
    /// told before this returns or right after.
    pub fn inject(&self, fault: &Fault) -> Result<(), MachineError> {
        self.change(|model, tree| {
            let removed = fault.gpu().and_then(|index| model.gpus.get(index)).cloned();
            model.apply(fault)?;
            match fault {
                Fault::AddGpu => model.gpus.last().map_or(Ok(()), |gpu| tree.add_gpu(model, gpu)),
                Fault::RemoveGpu { .. } => removed.map_or(Ok(()), |gpu| tree.remove_gpu(&gpu)),
                _ => Ok(()),
            }
        })
    }

    /// Changes anything about the machine, atomically: sensors, processes, MIG.
    pub fn update(&self, change: impl FnOnce(&mut Model)) -> Result<(), MachineError> {
        self.change(|model, _| {
            change(model);
            Ok(())
        })
    }

    /// Unloads the driver: the library, `/proc/driver/nvidia` and the device nodes vanish, and a
    /// process that has the library open gets `NVML_ERROR_DRIVER_NOT_LOADED`.
    pub fn remove_driver(&self) -> Result<(), MachineError> {
        self.change(|model, tree| {
            model.driver_loaded = false;
            tree.remove_driver(model)?;
            let library = self.nvml_library();
            if library.exists() {
                act("remove", &library, |path| fs::rename(path, self.dir.join(SPARE_LIBRARY)))?;
            }
            Ok(())
        })
    }

    /// Undoes [`Self::remove_driver`]. The library is a new file, as after a real installation.
    pub fn install_driver(&self) -> Result<(), MachineError> {
        self.change(|model, tree| {
            model.driver_loaded = true;
            tree.add_driver(model)?;
            let spare = self.dir.join(SPARE_LIBRARY);
            if spare.exists() { self.copy_library(&spare) } else { Ok(()) }
        })
    }

    /// Reads, changes and writes the state while no one else does.
    fn change(
        &self,
        change: impl FnOnce(&mut Model, &Tree) -> Result<(), MachineError>,
    ) -> Result<(), MachineError> {
        let lock = act("open", &self.dir.join(LOCK), File::create)?;
        act("lock", &self.dir.join(LOCK), |_| lock.lock())?;
        let mut model = self.model()?;
        change(&mut model, &Tree::new(&self.host_root()))?;
        self.store(&model)
    }

    /// Replaces the state; a reader sees the old one or the new one.
    fn store(&self, model: &Model) -> Result<(), MachineError> {
        let path = self.state_file();
        let json = serde_json::to_vec(model).expect("strings, numbers and lists");
        let new = self.dir.join("state.json.new");
        act("write", &new, |new| fs::write(new, json))?;
        act("replace", &path, |path| fs::rename(&new, path))
    }

    fn link_library(&self) -> Result<(), MachineError> {
        act("link", &self.dir.join(UNVERSIONED_LIBRARY), |link| match symlink(LIBRARY, link) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other,
        })
    }

    /// Puts a copy of the driver in place at once, so that no one loads half of it.
    fn copy_library(&self, driver: &Path) -> Result<(), MachineError> {
        let new = self.dir.join(".new-libnvidia-ml.so.1");
        act("copy the simulated driver", driver, |driver| fs::copy(driver, &new))?;
        act("replace", &self.nvml_library(), |library| fs::rename(&new, library))
    }
}

/// Does something to a path, and says what and to which when it fails.
pub(crate) fn act<'a, T>(
    action: &'static str,
    path: &'a Path,
    run: impl FnOnce(&'a Path) -> io::Result<T>,
) -> Result<T, MachineError> {
    run(path).map_err(|source| MachineError::Io { action, path: path.to_owned(), source })
}
