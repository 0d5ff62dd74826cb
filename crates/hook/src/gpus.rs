//! Limits on GPUs: set, read back, undone.

use std::path::Path;

use windlass_core::memory_limit::{GpuMemoryLimit, LimitedGpu};
use windlass_host::causes;
use windlass_nvml::{Gpu, MemoryLimits, MigMode, Nvml, NvmlError};

use crate::HookError;

/// GPU of a record with its limit.
#[derive(Debug)]
pub(crate) struct Target<'a> {
    limit: &'a GpuMemoryLimit,
    gpu: Gpu,
}

/// Large page of the driver. It may round a limit up to whole pages.
const PAGE: u64 = 2 << 20;

/// Limits of a cgroup without limits. The soft limit of the hook is always 0: another one spreads to the ancestors of
/// the cgroup and stays there.
const NONE: MemoryLimits = MemoryLimits { soft: 0, hard: None };

/// Loads NVML of a driver that limits memory.
pub(crate) fn load(library: &Path) -> Result<Nvml, HookError> {
    let nvml = Nvml::load(library)?;
    if nvml.has_memory_limits() { Ok(nvml) } else { Err(HookError::OldDriver(library.to_owned())) }
}

/// Limits every GPU, or none.
pub(crate) fn limit(targets: &[Target<'_>], cgroup: &Path) -> Result<Vec<LimitedGpu>, HookError> {
    let mut limited = Vec::new();
    for (index, target) in targets.iter().enumerate() {
        match target.limit(cgroup) {
            Ok(gpu) => limited.push(gpu),
            // A failed call may have had an effect too.
            Err(error) => return Err(undo(&targets[..=index], cgroup, error)),
        }
    }
    Ok(limited)
}

/// Lifts limits after a failure. Returns the failure, with the GPUs whose limits stay.
pub(crate) fn undo(targets: &[Target<'_>], cgroup: &Path, failure: HookError) -> HookError {
    let kept = targets.iter().filter(|target| lift(&target.gpu, cgroup).is_err());
    let kept: Vec<_> = kept.map(|target| target.limit.uuid.as_str()).collect();
    if kept.is_empty() {
        return failure;
    }
    HookError::Kept { cause: causes(&failure), gpus: kept.join(", ") }
}

/// Lifts the limit of a cgroup.
pub(crate) fn lift(gpu: &Gpu, cgroup: &Path) -> Result<(), NvmlError> {
    gpu.set_memory_limits(cgroup, NONE)
}

// === impl Target ===

impl<'a> Target<'a> {
    /// The whole GPU of a limit.
    pub(crate) fn find(nvml: &Nvml, limit: &'a GpuMemoryLimit) -> Result<Self, HookError> {
        let failed = |source| HookError::Gpu { uuid: limit.uuid.clone(), source };
        let gpu = nvml.gpu_with_uuid(&limit.uuid).map_err(failed)?;
        match gpu.mig_mode().map_err(failed)? {
            MigMode::Enabled => Err(HookError::Mig(limit.uuid.clone())),
            MigMode::Disabled | MigMode::Unsupported => Ok(Self { limit, gpu }),
        }
    }

    /// Sets the limit and reads it back.
    fn limit(&self, cgroup: &Path) -> Result<LimitedGpu, HookError> {
        let (uuid, asked) = (self.limit.uuid.clone(), self.limit.hard_bytes());
        let wanted = MemoryLimits { hard: Some(asked), ..NONE };
        let set = self.gpu.set_memory_limits(cgroup, wanted);
        match set.and_then(|()| self.gpu.memory_limits(cgroup)) {
            Err(source) => Err(HookError::Refused { uuid, asked, source }),
            Ok(found) => match found.and_then(|found| found.hard) {
                Some(hard_bytes) if is_kept(asked, hard_bytes) => {
                    Ok(LimitedGpu { uuid, hard_bytes })
                }
                found => Err(HookError::Differs { uuid, asked, found }),
            },
        }
    }
}

/// True for the limit itself, and for the limit in whole pages.
fn is_kept(asked: u64, found: u64) -> bool {
    found == asked || found == asked.next_multiple_of(PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_may_be_rounded_up_to_whole_pages() {
        const MIB: u64 = 1 << 20;
        for (asked, found, expected) in [
            (4, 4, true),
            (3, 3, true),
            (3, 4, true),
            (3, 2, false),
            (4, 6, false),
            (4, 0, false),
            (1, 4, false),
        ] {
            assert_eq!(is_kept(asked * MIB, found * MIB), expected, "{asked} {found}");
        }
        assert!(!is_kept(4 * MIB, 4 * MIB - 1));
    }
}
