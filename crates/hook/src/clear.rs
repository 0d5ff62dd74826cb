//! Lifts the limits that a note records, after its container has ended.

use std::path::Path;

use windlass_core::memory_limit::{LimitedGpu, MemoryLimitNote};
use windlass_host::causes;
use windlass_nvml::{Nvml, NvmlError};

use crate::{HookError, boot_id, dmem, gpus, record};

/// Lifts the limits that a note records. Does nothing if the cgroup no longer exists or the note is of another boot,
/// because the limits ended with the cgroup or the boot. The agent removes the note. `proc` is the mount point of
/// procfs.
///
/// # Guarantees
///
/// Tries every GPU, also after a failure. A GPU that was removed from the machine counts as cleared.
///
/// # Errors
///
/// Fails if the note or the boot id cannot be read, the driver cannot be used, or a limit cannot be lifted. The error
/// for a limit names the GPUs.
pub fn clear(note_path: &Path, proc: &Path) -> Result<(), HookError> {
    let note = record::read_note(note_path)?;
    boot_id(proc)?;
    if !is_in_force(&note, proc) {
        return Ok(());
    }
    let nvml = gpus::load(note.library())?;
    let failures =
        note.gpus().iter().filter_map(|gpu| clear_gpu(nvml.as_ref(), gpu, note.cgroup()));
    let failures: Vec<_> = failures.collect();
    if failures.is_empty() {
        return Ok(());
    }
    Err(HookError::NotCleared { cgroup: note.cgroup().to_owned(), gpus: failures.join(", ") })
}

/// True if the note is of this boot and its cgroup exists.
pub(crate) fn is_in_force(note: &MemoryLimitNote, proc: &Path) -> bool {
    let is_of_this_boot = boot_id(proc).is_ok_and(|id| id == note.boot_id());
    is_of_this_boot && note.cgroup().exists()
}

/// Lifts the limit of one GPU. Returns `None`, or the GPU's UUID with the error.
fn clear_gpu(nvml: Option<&Nvml>, gpu: &LimitedGpu, cgroup: &Path) -> Option<String> {
    let lift_by_driver = || {
        let nvml = nvml.expect("a note with a GPU of the driver names its library");
        lift_driver_limit(nvml, &gpu.uuid, cgroup).map_err(|error| error.to_string())
    };
    let lift_by_kernel = |region| dmem::lift(cgroup, region).map_err(|error| causes(&error));
    match gpu.region.as_ref().map_or_else(lift_by_driver, lift_by_kernel) {
        // The cgroup was removed meanwhile, and the limit with it.
        Err(_) if !cgroup.exists() => None,
        lifted => lifted.err().map(|error| format!("{} ({error})", gpu.uuid)),
    }
}

/// Lifts the driver's limit. A GPU that was removed has no limit.
fn lift_driver_limit(nvml: &Nvml, uuid: &str, cgroup: &Path) -> Result<(), NvmlError> {
    match nvml.gpu_with_uuid(uuid) {
        Err(error) if error.is_absent() => Ok(()),
        found => gpus::lift(&found?, cgroup),
    }
}
