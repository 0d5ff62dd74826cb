//! Hook that limits the GPU memory of a container's cgroup. NVIDIA's driver or the kernel's controller for device
//! memory enforces the limit.
//!
//! The container runtime starts the hook on the host as root, after it created the container's cgroup and before the
//! container's first instruction (`createRuntime` of the OCI runtime specification). If the hook fails, the container
//! does not start.
//!
//! ```text
//! record, state on stdin ─> cgroup of the container ─> every GPU found ─> set, read back ─> note
//!           │                        │                        │                 │            │
//!           └────────────────────────┴─── error ──────────────┘                 └─ undone ───┘
//! ```
//!
//! The hook fails if anything is missing, invalid or ambiguous. Limits come only from the agent's record. The hook
//! reads neither environment nor bundle, because the tenant controls both.

mod cgroup;
mod clear;
mod dmem;
mod error;
mod gpus;
mod install;
mod record;
mod state;

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
};

use windlass_core::memory_limit::MemoryLimitNote;
use windlass_host::files::{self, FileAccess, Symlinks};

use self::{cgroup::MountPoints, gpus::Target};
pub use clear::clear;
pub use error::HookError;
pub use install::install;

/// Boot id below the mount point of procfs (`random(4)`).
const BOOT_ID: &str = "sys/kernel/random/boot_id";

/// Maximum size of a record and of a note, in bytes. A GPU takes 70 bytes.
const MAX_DOCUMENT: u64 = 64 << 10;

/// Sets the limits of a record, multiplied by the number of replicas, and writes a note beside the record. `state`
/// contains the OCI state of the container. `proc` is the mount point of procfs. Returns the path of the note.
///
/// # Guarantees
///
/// On success every limit was read back, as requested or, from the driver, rounded up to whole pages. On failure all
/// limits of this call are lifted, unless the error is [`HookError::RollbackFailed`].
///
/// # Errors
///
/// Fails for any missing or invalid input, if the driver or the kernel rejects a limit, and if the note cannot be
/// written.
pub fn limit(
    record_path: &Path,
    replicas: u32,
    state: impl Read,
    proc: &Path,
) -> Result<PathBuf, HookError> {
    let record = record::read(record_path, replicas)?;
    let state = state::read(state)?;
    let note_path = MemoryLimitNote::path(record_path, &state.id).ok_or_else(|| {
        HookError::InvalidState(format!("`{}` is not a valid container id", state.id))
    })?;
    let cgroup = MountPoints { proc, root: record.cgroup_root() }.of_container(state.pid)?;
    let boot_id = boot_id(proc)?;
    let nvml = gpus::load(record.library())?;
    let find = |limit| Target::find(nvml.as_ref(), record.cgroup_root(), &cgroup, limit);
    let targets = record.gpus().iter().map(find).collect::<Result<Vec<_>, _>>()?;
    let limited = gpus::limit(&targets, &cgroup)?;
    let library = record.library().map(Path::to_owned);
    let note = MemoryLimitNote::new(boot_id, library, &cgroup, limited)
        .map_err(HookError::from)
        .and_then(|note| write_note(&note_path, &note));
    note.map_err(|error| gpus::roll_back(&targets, &cgroup, error))?;
    remove_stale_notes(record_path, &note_path, proc);
    Ok(note_path)
}

fn write_note(path: &Path, note: &MemoryLimitNote) -> Result<(), HookError> {
    let written = files::replace(path, &note.to_json(), FileAccess::Owner);
    written.map(drop).map_err(|source| HookError::Write { path: path.to_owned(), source })
}

fn boot_id(proc: &Path) -> Result<String, HookError> {
    let path = proc.join(BOOT_ID);
    let id = files::read_regular_text(&path, Symlinks::Refused, MAX_DOCUMENT);
    let id = id.map_err(|source| HookError::Read { path, source })?;
    Ok(id.trim().to_owned())
}

/// Removes notes of earlier containers of this record, because a container that restarts has a new id and a new cgroup.
/// Ignores failures, because a stale note is harmless.
fn remove_stale_notes(record: &Path, current: &Path, proc: &Path) {
    let Some(entries) = record.parent().and_then(|folder| fs::read_dir(folder).ok()) else {
        return;
    };
    for path in entries.flatten().map(|entry| entry.path()) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let is_other = path != current && MemoryLimitNote::container(record, name).is_some();
        if is_other && record::read_note(&path).is_ok_and(|note| !clear::is_in_force(&note, proc)) {
            let _ = fs::remove_file(&path);
        }
    }
}
