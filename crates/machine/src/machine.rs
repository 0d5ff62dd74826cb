//! Simulated machine on disk: created, opened, and changed under concurrent readers.
//!
//! ```text
//! dir/
//!   host/                  fake host tree: sys, proc, dev, run
//!   libnvidia-ml.so.1      this machine's own copy of the simulated driver
//!   libcuda.so.1           link to libnvidia-ml.so.1, for CUDA programs
//!   state.json             the model; replaced by rename, never written in place
//!   state.lock             lock of the process that changes the model
//! ```
//!
//! Each machine has a copy of the driver, because glibc identifies libraries by inode. With a link, two machines in
//! one process would share one library instance.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use crate::{
    fault::{Fault, FaultError},
    installed,
    mig::MigError,
    profile::{MachineProfile, ValidationError},
    state::{Gpu, Model},
    tree::{MARKER, Tree, ignore_error_kind},
};

const HOST_DIR: &str = "host";
const NVML_LIBRARY: &str = "libnvidia-ml.so.1";
/// Unversioned name that some clients load: a link to [`NVML_LIBRARY`], dangling while the driver is removed.
const UNVERSIONED_LIBRARY: &str = "libnvidia-ml.so";
/// CUDA library name that programs load: a link to [`NVML_LIBRARY`].
const CUDA_LIBRARY: &str = "libcuda.so.1";
const REMOVED_LIBRARY: &str = ".removed-libnvidia-ml.so.1";
/// [`HOST_DIR`] of an earlier machine, during its removal.
const REMOVED_HOST_DIR: &str = ".removed-host";
const STATE_FILE: &str = "state.json";
const LOCK_FILE: &str = "state.lock";

/// Simulated machine in a folder.
#[derive(Clone, Debug)]
pub struct Machine {
    dir: PathBuf,
}

/// Reason why a machine could not be created, read or changed.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// The profile describes an impossible machine.
    #[error("profile {profile} describes an impossible machine")]
    Profile {
        /// Name of the profile.
        profile: String,
        /// Problem in the profile.
        source: ValidationError,
    },
    /// The simulated driver is missing.
    #[error(
        "the simulated driver is not at {searched_paths}; build it with `cargo build -p windlass-nvml-sim`, \
         or set WINDLASS_SIM_DRIVER to its path"
    )]
    DriverNotFound {
        /// Searched paths, separated by commas.
        searched_paths: String,
    },
    /// An I/O operation failed.
    #[error("cannot {action} {path}")]
    Io {
        /// Attempted operation.
        action: &'static str,
        /// Path of the operation.
        path: PathBuf,
        /// Error from the kernel.
        source: io::Error,
    },
    /// A foreign file or folder has the name of a machine's entry.
    #[error(
        "{path} does not belong to a simulated machine; choose a folder that is empty or missing"
    )]
    ForeignFile {
        /// Path of the foreign entry.
        path: PathBuf,
    },
    /// The state is corrupt, or from another version.
    #[error("cannot read the machine's state {path}")]
    State {
        /// Path of the state file.
        path: PathBuf,
        /// Error from the parser.
        source: serde_json::Error,
    },
    /// The fault does not fit the machine.
    #[error("cannot inject a fault")]
    Fault(#[from] FaultError),
    /// The GPU does not support these MIG instances.
    #[error("cannot change MIG")]
    Mig(#[from] MigError),
}

// === impl Machine ===

impl Machine {
    /// Creates a machine in a folder, with `driver` as its NVML library: see [`crate::find_driver`]. A
    /// machine without NVIDIA's driver ignores `driver`.
    ///
    /// A missing folder is created, and files of an earlier machine are replaced. A folder with a foreign entry under
    /// the name of a machine's entry is refused and stays untouched.
    pub fn create(
        dir: &Path,
        profile: &MachineProfile,
        driver: &Path,
    ) -> Result<Self, MachineError> {
        let model = Model::new(profile)
            .map_err(|source| MachineError::Profile { profile: profile.name.clone(), source })?;
        with_path("create", dir, fs::create_dir_all)?;
        let dir = with_path("resolve", dir, fs::canonicalize)?;
        let machine = Self { dir };
        // With a lock file, another process may be creating a machine, so check only under the lock.
        if !machine.dir.join(LOCK_FILE).exists() {
            machine.refuse_foreign_files()?;
        }
        let _lock = machine.lock()?;
        machine.refuse_foreign_files()?;
        machine.remove_files()?;
        Tree::of(&model).update_folder(&Tree::default(), &machine.host_root())?;
        if model.driver_loaded {
            machine.copy_library(driver, &model)?;
            machine.link_libraries()?;
        }
        machine.store(&model)?;
        Ok(machine)
    }

    /// Opens a machine that this or another process created earlier.
    pub fn open(dir: &Path) -> Result<Self, MachineError> {
        let machine = Self { dir: with_path("open machine", dir, fs::canonicalize)? };
        machine.model()?;
        Ok(machine)
    }

    /// Absolute path of the machine's folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Root of the fake host tree: sysfs is at `sys` below it.
    pub fn host_root(&self) -> PathBuf {
        self.dir.join(HOST_DIR)
    }

    /// Path of the NVML library. The file is absent on a machine without NVIDIA's driver.
    pub fn nvml_library(&self) -> PathBuf {
        self.dir.join(NVML_LIBRARY)
    }

    /// Path of the CUDA library, beside the NVML library.
    pub fn cuda_library(&self) -> PathBuf {
        self.dir.join(CUDA_LIBRARY)
    }

    /// Path of the state file. The library reads this file.
    pub fn state_file(&self) -> PathBuf {
        self.dir.join(STATE_FILE)
    }

    /// Current model of the machine.
    pub fn model(&self) -> Result<Model, MachineError> {
        let path = self.state_file();
        let json = with_path("read", &path, fs::read)?;
        serde_json::from_slice(&json).map_err(|source| MachineError::State { path, source })
    }

    /// Applies a fault to the state and to the fake tree. Waiting NVML clients receive the event before this call
    /// returns, or shortly after.
    pub fn inject(&self, fault: &Fault) -> Result<(), MachineError> {
        self.change(|model| Ok(model.apply(fault)?))
    }

    /// Changes the model, for example sensors, processes or MIG, and updates the fake tree. The state file is replaced
    /// atomically.
    pub fn update(&self, change: impl FnOnce(&mut Model)) -> Result<(), MachineError> {
        self.change(|model| {
            change(model);
            Ok(())
        })
    }

    /// Partitions a GPU into MIG instances by profile name, as `nvidia-smi mig -cgi` does. An empty list
    /// leaves MIG on without instances; `None` turns MIG off. Instances at an unchanged list position keep
    /// their UUIDs.
    pub fn set_mig(&self, gpu: usize, instances: Option<&[&str]>) -> Result<(), MachineError> {
        self.change(|model| Ok(model.set_mig(gpu, instances)?))
    }

    /// Unloads the driver: the library, `/proc/driver/nvidia` and the device nodes vanish. A process with
    /// the open library gets `NVML_ERROR_DRIVER_NOT_LOADED`.
    pub fn remove_driver(&self) -> Result<(), MachineError> {
        self.change(|model| {
            model.driver_loaded = false;
            let removed_library = self.dir.join(REMOVED_LIBRARY);
            with_path("remove", &self.nvml_library(), |library| {
                ignore_error_kind(io::ErrorKind::NotFound, fs::rename(library, removed_library))
            })
        })
    }

    /// Undoes [`Self::remove_driver`]. The library is a new file, as after a real installation.
    pub fn install_driver(&self) -> Result<(), MachineError> {
        self.change(|model| {
            model.driver_loaded = model.driver.is_some();
            let removed_library = self.dir.join(REMOVED_LIBRARY);
            if removed_library.exists() {
                self.copy_library(&removed_library, model)
            } else {
                Ok(())
            }
        })
    }

    /// Reads, changes and writes the state under the lock, and updates the fake tree.
    fn change(
        &self,
        change: impl FnOnce(&mut Model) -> Result<(), MachineError>,
    ) -> Result<(), MachineError> {
        let _lock = self.lock()?;
        let before = self.model()?;
        let mut model = before.clone();
        change(&mut model)?;
        if !has_same_tree(&before, &model) {
            Tree::of(&model).update_folder(&Tree::of(&before), &self.host_root())?;
        }
        self.store(&model)
    }

    /// Locks the machine against other writers until the file is closed.
    fn lock(&self) -> Result<File, MachineError> {
        let path = self.dir.join(LOCK_FILE);
        let lock = with_path("open", &path, File::create)?;
        with_path("lock", &path, |_| lock.lock())?;
        Ok(lock)
    }

    /// Fails if a foreign file has the name of a machine's entry. No file is foreign if the tree contains the marker.
    /// If the lock file exists, only the tree can be foreign.
    fn refuse_foreign_files(&self) -> Result<(), MachineError> {
        let host = self.host_root();
        if host.join(MARKER).exists() {
            return Ok(());
        }
        let has_lock_file = self.dir.join(LOCK_FILE).exists();
        let all_names = &[HOST_DIR, NVML_LIBRARY, UNVERSIONED_LIBRARY, CUDA_LIBRARY, STATE_FILE];
        let names = if has_lock_file { &[HOST_DIR][..] } else { all_names };
        let mut paths = names.iter().map(|name| self.dir.join(name));
        match paths.find(|path| path.symlink_metadata().is_ok()) {
            Some(path) => Err(MachineError::ForeignFile { path }),
            None => Ok(()),
        }
    }

    /// Removes the files of an earlier machine. The tree is renamed first, so that its remains are recognisable after a
    /// crash.
    fn remove_files(&self) -> Result<(), MachineError> {
        let not_found = io::ErrorKind::NotFound;
        let (host, removed_host) = (self.host_root(), self.dir.join(REMOVED_HOST_DIR));
        with_path("remove", &removed_host, |path| {
            ignore_error_kind(not_found, fs::remove_dir_all(path))
        })?;
        with_path("remove", &host, |host| {
            ignore_error_kind(not_found, fs::rename(host, &removed_host))
        })?;
        with_path("remove", &removed_host, |path| {
            ignore_error_kind(not_found, fs::remove_dir_all(path))
        })?;
        [REMOVED_LIBRARY, NVML_LIBRARY, UNVERSIONED_LIBRARY, CUDA_LIBRARY].iter().try_for_each(
            |name| {
                with_path("remove", &self.dir.join(name), |file| {
                    ignore_error_kind(not_found, fs::remove_file(file))
                })
            },
        )
    }

    /// Replaces the state atomically; a reader sees the old or the new state.
    fn store(&self, model: &Model) -> Result<(), MachineError> {
        let path = self.state_file();
        let json = serde_json::to_vec(model).expect("the model has only string keys");
        let new_file = self.dir.join("state.json.new");
        with_path("write", &new_file, |path| fs::write(path, json))?;
        with_path("replace", &path, |path| fs::rename(&new_file, path))
    }

    fn link_libraries(&self) -> Result<(), MachineError> {
        [UNVERSIONED_LIBRARY, CUDA_LIBRARY].iter().try_for_each(|name| {
            with_path("link", &self.dir.join(name), |link| {
                ignore_error_kind(io::ErrorKind::AlreadyExists, symlink(NVML_LIBRARY, link))
            })
        })
    }

    /// Installs a copy of the driver atomically, so that every process loads a complete library.
    fn copy_library(&self, driver: &Path, model: &Model) -> Result<(), MachineError> {
        let new_file = self.dir.join(".new-libnvidia-ml.so.1");
        with_path("copy the simulated driver", driver, |driver| fs::copy(driver, &new_file))?;
        with_path("change", &new_file, |path| {
            installed::export_functions(path, model.driver.as_ref())
        })?;
        with_path("replace", &self.nvml_library(), |library| fs::rename(&new_file, library))
    }
}

/// True if a change leaves all files of the tree unchanged, as most changes do. This comparison is faster than
/// building and comparing two trees.
fn has_same_tree(before: &Model, after: &Model) -> bool {
    fn gpu_fields(gpu: &Gpu) -> impl PartialEq {
        (gpu.number, &gpu.uuid, gpu.minor, &gpu.path, gpu.numa, &gpu.card, &gpu.mig)
    }
    fn machine_fields(model: &Model) -> impl PartialEq {
        let names = (&model.profile, &model.product, &model.driver, model.driver_loaded);
        let others = (&model.nics, &model.bonds, &model.devices, &model.happened);
        (names, &model.numa, &model.switches, others)
    }
    machine_fields(before) == machine_fields(after)
        && before.gpus.iter().map(gpu_fields).eq(after.gpus.iter().map(gpu_fields))
}

/// Runs an operation on a path. The error names the operation and the path.
pub(crate) fn with_path<'a, T>(
    action: &'static str,
    path: &'a Path,
    run: impl FnOnce(&'a Path) -> io::Result<T>,
) -> Result<T, MachineError> {
    run(path).map_err(|source| MachineError::Io { action, path: path.to_owned(), source })
}
