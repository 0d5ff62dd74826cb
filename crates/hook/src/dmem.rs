//! Limits by the kernel's controller for device memory (`dmem` of cgroup v2, Linux 6.14).
//!
//! A cgroup has the files of a controller if every ancestor enables the controller in `cgroup.subtree_control`. Neither
//! the kubelet nor the container runtimes enable `dmem`.
//!
//! ```text
//! cgroup.subtree_control   +dmem            root, then each cgroup down to the parent of the container's cgroup
//! dmem.max                 REGION BYTES     container's cgroup; written and read back
//! ```
//!
//! The controller remains enabled, because without limits it only counts memory. `dmem.min` and `dmem.low` remain 0.

use std::{fs::File, io::Write as _, path::Path};

use windlass_core::dmem::{CONTROLLER, DmemRegion};
use windlass_host::files::{self, Symlinks};

use crate::{HookError, MAX_DOCUMENT, cgroup::CONTROLLERS_FILE};

/// File with the controllers that a cgroup enables for its children (`cgroups(7)`).
const SUBTREE_CONTROL: &str = "cgroup.subtree_control";

/// File with the hard limits of a cgroup, by region.
const LIMITS_FILE: &str = "dmem.max";

/// Value of a region without a limit.
const NO_LIMIT: &str = "max";

/// Enables the controller for the container's cgroup, and checks that the kernel has the region.
pub(crate) fn prepare(root: &Path, cgroup: &Path, region: &DmemRegion) -> Result<(), HookError> {
    let outside_root = |_| HookError::NoDmem(cgroup.to_owned());
    let relative = cgroup.strip_prefix(root).map_err(outside_root)?;
    let mut ancestor = root.to_owned();
    for part in relative {
        enable_for_children(&ancestor)?;
        ancestor.push(part);
    }
    if !has_controller(&cgroup.join(CONTROLLERS_FILE))? {
        return Err(HookError::NoDmem(cgroup.to_owned()));
    }
    let path = cgroup.join(LIMITS_FILE);
    match region.value(&read(&path)?) {
        Some(_) => Ok(()),
        None => Err(HookError::NoRegion { region: region.to_string(), path }),
    }
}

/// Limits a region. Returns the limit that is read back, in bytes; `None` for no limit.
pub(crate) fn limit(
    cgroup: &Path,
    region: &DmemRegion,
    bytes: u64,
) -> Result<Option<u64>, HookError> {
    let path = cgroup.join(LIMITS_FILE);
    write(&path, &format!("{region} {bytes}\n"))?;
    Ok(region.value(&read(&path)?).and_then(|value| value.parse().ok()))
}

/// Lifts the limit of a region. A region that was removed has no limit.
pub(crate) fn lift(cgroup: &Path, region: &DmemRegion) -> Result<(), HookError> {
    let path = cgroup.join(LIMITS_FILE);
    match region.value(&read(&path)?) {
        Some(value) if value != NO_LIMIT => write(&path, &format!("{region} {NO_LIMIT}\n")),
        Some(_) | None => Ok(()),
    }
}

/// Enables the controller for the children of a cgroup.
fn enable_for_children(cgroup: &Path) -> Result<(), HookError> {
    if !has_controller(&cgroup.join(CONTROLLERS_FILE))? {
        return Err(HookError::NoDmem(cgroup.to_owned()));
    }
    let path = cgroup.join(SUBTREE_CONTROL);
    if has_controller(&path)? { Ok(()) } else { write(&path, &format!("+{CONTROLLER}")) }
}

/// True if a file with controllers contains `dmem`.
fn has_controller(path: &Path) -> Result<bool, HookError> {
    Ok(read(path)?.split_ascii_whitespace().any(|name| name == CONTROLLER))
}

fn read(path: &Path) -> Result<String, HookError> {
    let text = files::read_regular_text(path, Symlinks::Refused, MAX_DOCUMENT);
    text.map_err(|source| HookError::Read { path: path.to_owned(), source })
}

/// Writes an existing file of a cgroup, in one call because the kernel parses each call as one command.
fn write(path: &Path, text: &str) -> Result<(), HookError> {
    let write_error = |source| HookError::Write { path: path.to_owned(), source };
    let mut file = File::options().write(true).truncate(true).open(path).map_err(write_error)?;
    file.write_all(text.as_bytes()).map_err(write_error)
}
