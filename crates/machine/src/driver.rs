//! Location of the simulated driver, the cdylib of `windlass-nvml-sim`.

use std::{env, path::PathBuf};

use crate::machine::MachineError;

/// File name of the library in cargo's output.
const LIBRARY_FILE: &str = "libwindlass_nvml_sim.so";

/// Environment variable with the library's path.
const DRIVER_VARIABLE: &str = "WINDLASS_SIM_DRIVER";

/// Folders that may hold the library, relative to the running executable. In order: its own folder, `deps` beside a
/// built `windlass`, the parent of `deps` and `examples`, and the library folder of a package.
const SEARCH_DIRS: [&str; 4] = ["", "deps", "..", "../lib/windlass"];

/// Path from `WINDLASS_SIM_DRIVER`, if set.
pub fn driver_from_env() -> Result<Option<PathBuf>, MachineError> {
    match env::var_os(DRIVER_VARIABLE).map(PathBuf::from) {
        Some(path) if !path.is_file() => Err(missing(&[path])),
        path => Ok(path),
    }
}

/// Finds the simulated driver: `WINDLASS_SIM_DRIVER`, or a file near the running executable.
pub fn find_driver() -> Result<PathBuf, MachineError> {
    if let Some(path) = driver_from_env()? {
        return Ok(path);
    }
    let executable = env::current_exe().unwrap_or_default();
    let folder = executable.parent().map(PathBuf::from).unwrap_or_default();
    let candidates = SEARCH_DIRS.map(|dir| folder.join(dir).join(LIBRARY_FILE));
    // The newest file wins: `cargo build` writes above `deps`, `cargo test` only inside `deps`.
    let modification_time =
        |path: &&PathBuf| path.metadata().and_then(|metadata| metadata.modified()).ok();
    let newest = candidates.iter().filter(|path| path.is_file()).max_by_key(modification_time);
    newest.cloned().ok_or_else(|| missing(&candidates))
}

fn missing(paths: &[PathBuf]) -> MachineError {
    let paths = paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>();
    MachineError::DriverNotFound { searched_paths: paths.join(", ") }
}
