//! A simulated machine on disk: made, opened, and changed while others read it.
//!
//! ```text
//! dir/
//!   host/                  what the kernel shows: sys, proc, dev, run
//!   libnvidia-ml.so.1      this machine's own copy of the simulated driver
//!   libcuda.so.1           the same, for programs that compute
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
    mig::MigError,
    profile::{Problem, Profile},
    state::{Gpu, Model},
    tree::{MARKER, Tree, unless},
};

const HOST: &str = "host";
const LIBRARY: &str = "libnvidia-ml.so.1";
/// What some clients load; a link to [`LIBRARY`], which dangles while there is no driver.
const UNVERSIONED_LIBRARY: &str = "libnvidia-ml.so";
/// What programs that compute load; likewise a link.
const CUDA_LIBRARY: &str = "libcuda.so.1";
const SPARE_LIBRARY: &str = ".removed-libnvidia-ml.so.1";
/// An earlier machine's [`HOST`] while it is being removed.
const OLD_HOST: &str = ".removed-host";
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
    /// The folder has something in a machine's place that no machine put there.
    #[error("{path} is not of a simulated machine; choose a folder that is empty or missing")]
    NotOurs {
        /// What is in the way.
        path: PathBuf,
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
    /// The GPU cannot be cut so.
    #[error("cannot change MIG")]
    Mig(#[from] MigError),
}

// === impl Machine ===

impl Machine {
    /// Makes a machine in a folder, with `driver` as its NVML library: see
    /// [`crate::simulated_driver`]. A machine without NVIDIA's driver has none, whatever is given.
    ///
    /// The folder is created; what an earlier machine left there is replaced. A folder with
    /// anything else in a machine's place is refused and not touched.
    pub fn create(dir: &Path, profile: &Profile, driver: &Path) -> Result<Self, MachineError> {
        let model = Model::new(profile)
            .map_err(|source| MachineError::Profile { profile: profile.name.clone(), source })?;
        act("create", dir, fs::create_dir_all)?;
        let dir = act("resolve", dir, fs::canonicalize)?;
        let machine = Self { dir };
        // Where another process may be making a machine, what it has made so far tells nothing.
        if !machine.dir.join(LOCK).exists() {
            machine.refuse_strangers()?;
        }
        let _lock = machine.lock()?;
        machine.refuse_strangers()?;
        machine.clear()?;
        Tree::of(&model).replace(&Tree::default(), &machine.host_root())?;
        if model.driver_loaded {
            machine.copy_library(driver)?;
            machine.link_libraries()?;
        }
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

    /// Its NVML library; there is none on a machine without NVIDIA's driver.
    pub fn nvml_library(&self) -> PathBuf {
        self.dir.join(LIBRARY)
    }

    /// Its CUDA library, beside the other.
    pub fn cuda_library(&self) -> PathBuf {
        self.dir.join(CUDA_LIBRARY)
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
        self.change(|model| Ok(model.apply(fault)?))
    }

    /// Changes anything about the machine, atomically: sensors, processes, MIG. The fake tree shows
    /// GPUs and MIG instances as they are afterwards.
    pub fn update(&self, change: impl FnOnce(&mut Model)) -> Result<(), MachineError> {
        self.change(|model| {
            change(model);
            Ok(())
        })
    }

    /// Cuts a GPU into MIG instances by the names of their profiles, as `nvidia-smi mig -cgi` does;
    /// an empty list leaves MIG on without instances, `None` turns it off. Instances that stay in
    /// their place in the list keep their UUIDs.
    pub fn set_mig(&self, gpu: usize, instances: Option<&[&str]>) -> Result<(), MachineError> {
        self.change(|model| Ok(model.set_mig(gpu, instances)?))
    }

    /// Unloads the driver: the library, `/proc/driver/nvidia` and the device nodes vanish, and a
    /// process that has the library open gets `NVML_ERROR_DRIVER_NOT_LOADED`.
    pub fn remove_driver(&self) -> Result<(), MachineError> {
        self.change(|model| {
            model.driver_loaded = false;
            let spare = self.dir.join(SPARE_LIBRARY);
            act("remove", &self.nvml_library(), |library| {
                unless(io::ErrorKind::NotFound, fs::rename(library, spare))
            })
        })
    }

    /// Undoes [`Self::remove_driver`]. The library is a new file, as after a real installation.
    pub fn install_driver(&self) -> Result<(), MachineError> {
        self.change(|model| {
            model.driver_loaded = model.driver.is_some();
            let spare = self.dir.join(SPARE_LIBRARY);
            if spare.exists() { self.copy_library(&spare) } else { Ok(()) }
        })
    }

    /// Reads, changes and writes the state while no one else does, and what the fake tree shows of
    /// it.
    fn change(
        &self,
        change: impl FnOnce(&mut Model) -> Result<(), MachineError>,
    ) -> Result<(), MachineError> {
        let _lock = self.lock()?;
        let before = self.model()?;
        let mut model = before.clone();
        change(&mut model)?;
        if !shows_the_same(&before, &model) {
            Tree::of(&model).replace(&Tree::of(&before), &self.host_root())?;
        }
        self.store(&model)
    }

    /// Makes others wait who change the machine, until the file is closed.
    fn lock(&self) -> Result<File, MachineError> {
        let path = self.dir.join(LOCK);
        let lock = act("open", &path, File::create)?;
        act("lock", &path, |_| lock.lock())?;
        Ok(lock)
    }

    /// A tree of ours has the marker, and whatever else is ours has the lock beside it.
    fn refuse_strangers(&self) -> Result<(), MachineError> {
        let host = self.host_root();
        if host.join(MARKER).exists() {
            return Ok(());
        }
        let known = self.dir.join(LOCK).exists();
        let all = &[HOST, LIBRARY, UNVERSIONED_LIBRARY, CUDA_LIBRARY, STATE];
        let places = if known { &[HOST][..] } else { all };
        let mut places = places.iter().map(|name| self.dir.join(name));
        match places.find(|path| path.symlink_metadata().is_ok()) {
            Some(path) => Err(MachineError::NotOurs { path }),
            None => Ok(()),
        }
    }

    /// Removes what an earlier machine left. Its tree is moved away first, so that what is left of
    /// it after a crash still is known to be ours.
    fn clear(&self) -> Result<(), MachineError> {
        let missing = io::ErrorKind::NotFound;
        let (host, old) = (self.host_root(), self.dir.join(OLD_HOST));
        act("remove", &old, |old| unless(missing, fs::remove_dir_all(old)))?;
        act("remove", &host, |host| unless(missing, fs::rename(host, &old)))?;
        act("remove", &old, |old| unless(missing, fs::remove_dir_all(old)))?;
        [SPARE_LIBRARY, LIBRARY, UNVERSIONED_LIBRARY, CUDA_LIBRARY].iter().try_for_each(|name| {
            act("remove", &self.dir.join(name), |file| unless(missing, fs::remove_file(file)))
        })
    }

    /// Replaces the state; a reader sees the old one or the new one.
    fn store(&self, model: &Model) -> Result<(), MachineError> {
        let path = self.state_file();
        let json = serde_json::to_vec(model).expect("strings, numbers and lists");
        let new = self.dir.join("state.json.new");
        act("write", &new, |new| fs::write(new, json))?;
        act("replace", &path, |path| fs::rename(&new, path))
    }

    fn link_libraries(&self) -> Result<(), MachineError> {
        [UNVERSIONED_LIBRARY, CUDA_LIBRARY].iter().try_for_each(|name| {
            act("link", &self.dir.join(name), |link| {
                unless(io::ErrorKind::AlreadyExists, symlink(LIBRARY, link))
            })
        })
    }

    /// Puts a copy of the driver in place at once, so that no one loads half of it.
    fn copy_library(&self, driver: &Path) -> Result<(), MachineError> {
        let new = self.dir.join(".new-libnvidia-ml.so.1");
        act("copy the simulated driver", driver, |driver| fs::copy(driver, &new))?;
        act("replace", &self.nvml_library(), |library| fs::rename(&new, library))
    }
}

/// Whether a change concerns no file of the tree, as most do not: building two trees to see that
/// would take longer than the change.
fn shows_the_same(before: &Model, after: &Model) -> bool {
    fn of_gpu(gpu: &Gpu) -> impl PartialEq {
        (gpu.number, &gpu.uuid, gpu.minor, &gpu.path, gpu.numa, &gpu.card, &gpu.mig)
    }
    fn of_machine(model: &Model) -> impl PartialEq {
        let names = (&model.profile, &model.product, &model.driver, model.driver_loaded);
        let others = (&model.nics, &model.bonds, &model.devices, &model.happened);
        (names, &model.numa, &model.switches, others)
    }
    of_machine(before) == of_machine(after)
        && before.gpus.iter().map(of_gpu).eq(after.gpus.iter().map(of_gpu))
}

/// Does something to a path, and says what and to which when it fails.
pub(crate) fn act<'a, T>(
    action: &'static str,
    path: &'a Path,
    run: impl FnOnce(&'a Path) -> io::Result<T>,
) -> Result<T, MachineError> {
    run(path).map_err(|source| MachineError::Io { action, path: path.to_owned(), source })
}
