//! Limits on GPUs: setting, reading back, undoing. NVIDIA's driver limits a GPU by its UUID, the kernel by its region.

use std::path::Path;

use windlass_core::{
    dmem::DmemRegion,
    memory_limit::{GpuMemoryLimit, LimitedGpu},
};
use windlass_host::causes;
use windlass_nvml::{Gpu, MemoryLimits, MigMode, Nvml, NvmlError};

use crate::{HookError, dmem};

/// GPU of a record with its limit.
#[derive(Debug)]
pub(crate) struct Target<'a> {
    limit: &'a GpuMemoryLimit,
    by: Limiter<'a>,
}

/// Enforcer of a GPU's limit.
#[derive(Debug)]
enum Limiter<'a> {
    Driver(Gpu),
    Kernel(&'a DmemRegion),
}

/// Size of the driver's large pages in bytes. The driver may round a limit up to whole pages.
const PAGE: u64 = 2 << 20;

/// Values that lift the limits of a cgroup. The hook's soft limit is always 0, because another one spreads to the
/// cgroup's ancestors and stays there.
const NONE: MemoryLimits = MemoryLimits { soft: 0, hard: None };

/// Loads NVML, and checks that its driver limits memory; `None` if no library is given.
pub(crate) fn load(library: Option<&Path>) -> Result<Option<Nvml>, HookError> {
    let Some(library) = library else { return Ok(None) };
    let nvml = Nvml::load(library)?;
    if nvml.has_memory_limits() {
        Ok(Some(nvml))
    } else {
        Err(HookError::OldDriver(library.to_owned()))
    }
}

/// Limits every GPU. After a failure, lifts the limits that were set.
pub(crate) fn limit(targets: &[Target<'_>], cgroup: &Path) -> Result<Vec<LimitedGpu>, HookError> {
    let mut limited = Vec::new();
    for (index, target) in targets.iter().enumerate() {
        match target.limit(cgroup) {
            Ok(gpu) => limited.push(gpu),
            // The failed call may have set a limit too, so its GPU is undone as well.
            Err(error) => return Err(undo(&targets[..=index], cgroup, error)),
        }
    }
    Ok(limited)
}

/// Lifts limits after a failure. Returns the failure, with the GPUs whose limits stay.
pub(crate) fn undo(targets: &[Target<'_>], cgroup: &Path, failure: HookError) -> HookError {
    let kept = targets.iter().filter(|target| target.lift(cgroup).is_err());
    let kept: Vec<_> = kept.map(|target| target.limit.uuid.as_str()).collect();
    if kept.is_empty() {
        return failure;
    }
    HookError::Kept { cause: causes(&failure), gpus: kept.join(", ") }
}

/// Lifts the driver's limit of a cgroup.
pub(crate) fn lift(gpu: &Gpu, cgroup: &Path) -> Result<(), NvmlError> {
    gpu.set_memory_limits(cgroup, NONE)
}

// === impl Target ===

impl<'a> Target<'a> {
    /// Finds the GPU of a limit, and prepares this cgroup for the limit. Fails for a GPU in MIG mode.
    pub(crate) fn find(
        nvml: Option<&Nvml>,
        cgroups: &Path,
        cgroup: &Path,
        limit: &'a GpuMemoryLimit,
    ) -> Result<Self, HookError> {
        if let Some(region) = &limit.region {
            dmem::prepare(cgroups, cgroup, region)?;
            return Ok(Self { limit, by: Limiter::Kernel(region) });
        }
        let nvml = nvml.expect("a record with a GPU of the driver names its library");
        let failed = |source| HookError::Gpu { uuid: limit.uuid.clone(), source };
        let gpu = nvml.gpu_with_uuid(&limit.uuid).map_err(failed)?;
        match gpu.mig_mode().map_err(failed)? {
            MigMode::Enabled => Err(HookError::Mig(limit.uuid.clone())),
            MigMode::Disabled | MigMode::Unsupported => {
                Ok(Self { limit, by: Limiter::Driver(gpu) })
            }
        }
    }

    /// Sets the limit and reads it back.
    fn limit(&self, cgroup: &Path) -> Result<LimitedGpu, HookError> {
        let asked = self.limit.hard_bytes();
        let found = match &self.by {
            Limiter::Driver(gpu) => by_driver(gpu, cgroup, asked).map_err(|source| {
                let uuid = self.limit.uuid.clone();
                HookError::Refused { uuid, asked, source }
            })?,
            Limiter::Kernel(region) => dmem::limit(cgroup, region, asked)?,
        };
        check(self.limit, found)
    }

    fn lift(&self, cgroup: &Path) -> Result<(), HookError> {
        match &self.by {
            Limiter::Driver(gpu) => lift(gpu, cgroup).map_err(|source| {
                let uuid = self.limit.uuid.clone();
                HookError::Gpu { uuid, source }
            }),
            Limiter::Kernel(region) => dmem::lift(cgroup, region),
        }
    }
}

/// Limits a GPU by the driver. Returns the limit as read back, in bytes; `None` for no limit.
fn by_driver(gpu: &Gpu, cgroup: &Path, bytes: u64) -> Result<Option<u64>, NvmlError> {
    gpu.set_memory_limits(cgroup, MemoryLimits { hard: Some(bytes), ..NONE })?;
    Ok(gpu.memory_limits(cgroup)?.and_then(|found| found.hard))
}

/// Checks the limit that was read back. The driver may have rounded it up to whole pages; the kernel must not have.
fn check(limit: &GpuMemoryLimit, found: Option<u64>) -> Result<LimitedGpu, HookError> {
    let (uuid, region, asked) = (limit.uuid.clone(), limit.region.clone(), limit.hard_bytes());
    let (by, most) =
        if region.is_some() { ("kernel", asked) } else { ("driver", asked.next_multiple_of(PAGE)) };
    match found.filter(|found| [asked, most].contains(found)) {
        Some(hard_bytes) => Ok(LimitedGpu { uuid, region, hard_bytes }),
        None => Err(HookError::Differs { uuid, asked, by, found }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn limit(hard_mib: u64, region: Option<&str>) -> GpuMemoryLimit {
        let region = region.map(|region| region.parse().expect("a region"));
        GpuMemoryLimit { uuid: "GPU-a".to_owned(), region, hard_mib }
    }

    #[test]
    fn the_driver_may_round_a_limit_up_to_whole_pages() {
        for (asked, found, expected) in [
            (4, 4, true),
            (3, 3, true),
            (3, 4, true),
            (3, 2, false),
            (4, 6, false),
            (4, 0, false),
            (1, 4, false),
        ] {
            let kept = check(&limit(asked, None), Some(found * MIB));
            assert_eq!(kept.is_ok(), expected, "{asked} {found}");
        }
        check(&limit(4, None), Some(4 * MIB - 1)).expect_err("less");
    }

    #[test]
    fn the_kernel_must_not_round_a_limit() {
        let limit = limit(3, Some("drm/0000:03:00.0/vram"));
        let kept = check(&limit, Some(3 * MIB)).expect("kept");
        assert_eq!((kept.region, kept.hard_bytes), (limit.region.clone(), 3 * MIB));
        for (found, expected) in [
            (Some(4 * MIB), "the kernel reads back 4194304 bytes"),
            (Some(3 * MIB - 1), "the kernel reads back 3145727 bytes"),
            (None, "the kernel reads back no limit"),
        ] {
            let error = check(&limit, found).expect_err(expected).to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
