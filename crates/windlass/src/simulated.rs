//! Creation of simulated machines with the embedded simulated driver.

use std::{
    fs::Permissions,
    io::{self, Write},
    os::unix::fs::PermissionsExt,
    path::Path,
};

use anyhow::{Context, Result};
use tempfile::{NamedTempFile, TempDir};
use windlass_host::files::{self, Symlinks};
use windlass_kubelet_sim::Kubelet;
use windlass_machine::{Machine, MachineProfile, driver_from_env};

use crate::exit::UsageError;

/// Simulated NVML and CUDA: the library of `windlass-nvml-sim`.
const DRIVER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libwindlass_nvml_sim.so"));

/// Readable by every user, since any agent on the machine loads it.
const DRIVER_MODE: u32 = 0o644;

/// Size limit of a machine profile.
const MAX_BYTES: u64 = 1 << 20;

/// Loads a machine profile by its built-in name or by path.
pub(crate) fn load_profile(name_or_path: &str) -> Result<MachineProfile, UsageError> {
    let read = |path: &Path| files::read_regular_text(path, Symlinks::Followed, MAX_BYTES);
    MachineProfile::load(name_or_path, read).map_err(|error| UsageError(error.into()))
}

/// Temporary folder of a command.
pub(crate) fn temp_folder() -> Result<TempDir> {
    let folder = tempfile::Builder::new().prefix("windlass-").tempdir();
    folder.context("cannot make a temporary folder")
}

/// Creates a machine below a temporary folder.
pub(crate) fn create_machine_in(folder: &Path, profile: &MachineProfile) -> Result<Machine> {
    create_machine(&folder.join("machine"), profile).context("cannot make the simulated machine")
}

/// Starts the kubelet of a machine below a temporary folder.
pub(crate) fn start_kubelet_in(folder: &Path) -> Result<Kubelet> {
    let mut settings = windlass_kubelet_sim::Config::new(folder.join("kubelet"));
    settings.numa_nodes = (0..8).collect();
    Kubelet::start(settings).context("cannot start the embedded kubelet")
}

/// Creates a machine in a folder, see [`Machine::create`]. `WINDLASS_SIM_DRIVER` may name another driver.
pub(crate) fn create_machine(dir: &Path, profile: &MachineProfile) -> Result<Machine> {
    if profile.driver.is_none() {
        return Ok(Machine::create(dir, profile, Path::new(""))?);
    }
    if let Some(path) = driver_from_env()? {
        return Ok(Machine::create(dir, profile, &path)?);
    }
    let driver = unpack_driver().context("cannot unpack the simulated driver")?;
    Ok(Machine::create(dir, profile, driver.path())?)
}

fn unpack_driver() -> io::Result<NamedTempFile> {
    let permissions = Permissions::from_mode(DRIVER_MODE);
    let mut file =
        tempfile::Builder::new().prefix("windlass-").permissions(permissions).tempfile()?;
    file.write_all(DRIVER)?;
    Ok(file)
}
