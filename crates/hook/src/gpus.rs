//! Sets, reads back and lifts limits of GPUs. NVIDIA's driver limits a GPU by its UUID, the kernel by its region.

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
    limiter: Limiter<'a>,
}

/// Enforcer of a GPU's limit.
#[derive(Debug)]
enum Limiter<'a> {
    Driver(Gpu),
    Kernel(&'a DmemRegion),
}

/// Size of the driver's large pages, in bytes. The driver may round a limit up to a multiple.
const PAGE_BYTES: u64 = 2 << 20;

/// Values that lift the limits of a cgroup. The hook's soft limit is always 0, because the driver would propagate
/// another value to the cgroup's ancestors, where it would remain.
const NO_LIMITS: MemoryLimits = MemoryLimits { soft: 0, hard: None };

/// Loads NVML, and checks that the driver supports memory limits. Returns `None` without a library.
pub(crate) fn load(library: Option<&Path>) -> Result<Option<Nvml>, HookError> {
    let Some(library) = library else { return Ok(None) };
    let nvml = Nvml::load(library)?;
    if nvml.has_memory_limits() {
        Ok(Some(nvml))
    } else {
        Err(HookError::OldDriver(library.to_owned()))
    }
}

/// Sets the limit of every GPU. After a failure, lifts the limits that were set.
pub(crate) fn limit(targets: &[Target<'_>], cgroup: &Path) -> Result<Vec<LimitedGpu>, HookError> {
    let mut limited = Vec::new();
    for (index, target) in targets.iter().enumerate() {
        match target.limit(cgroup) {
            Ok(gpu) => limited.push(gpu),
            // The failed call may have set a limit, so that of its GPU is lifted too.
            Err(error) => return Err(roll_back(&targets[..=index], cgroup, error)),
        }
    }
    Ok(limited)
}

/// Lifts limits after a failure. Returns the failure, with the GPUs whose limits could not be lifted.
pub(crate) fn roll_back(targets: &[Target<'_>], cgroup: &Path, failure: HookError) -> HookError {
    let remaining = targets.iter().filter(|target| target.lift(cgroup).is_err());
    let remaining: Vec<_> = remaining.map(|target| target.limit.uuid.as_str()).collect();
    if remaining.is_empty() {
        return failure;
    }
    HookError::RollbackFailed { cause: causes(&failure), gpus: remaining.join(", ") }
}

/// Lifts the driver's limit of a cgroup.
pub(crate) fn lift(gpu: &Gpu, cgroup: &Path) -> Result<(), NvmlError> {
    gpu.set_memory_limits(cgroup, NO_LIMITS)
}

// === impl Target ===

impl<'a> Target<'a> {
    /// Finds the GPU of a limit, and enables the kernel's controller for `cgroup` if the kernel limits the GPU.
    /// `cgroups` is the root of all cgroups. Fails for a GPU in MIG mode.
    pub(crate) fn find(
        nvml: Option<&Nvml>,
        cgroups: &Path,
        cgroup: &Path,
        limit: &'a GpuMemoryLimit,
    ) -> Result<Self, HookError> {
        if let Some(region) = &limit.region {
            dmem::prepare(cgroups, cgroup, region)?;
            return Ok(Self { limit, limiter: Limiter::Kernel(region) });
        }
        let nvml = nvml.expect("a record with a GPU of the driver names its library");
        let gpu_error = |source| HookError::Gpu { uuid: limit.uuid.clone(), source };
        let gpu = nvml.gpu_with_uuid(&limit.uuid).map_err(gpu_error)?;
        match gpu.mig_mode().map_err(gpu_error)? {
            MigMode::Enabled => Err(HookError::Mig(limit.uuid.clone())),
            MigMode::Disabled | MigMode::Unsupported => {
                Ok(Self { limit, limiter: Limiter::Driver(gpu) })
            }
        }
    }

    /// Sets the limit and reads it back.
    fn limit(&self, cgroup: &Path) -> Result<LimitedGpu, HookError> {
        let requested = self.limit.hard_bytes();
        let actual = match &self.limiter {
            Limiter::Driver(gpu) => limit_by_driver(gpu, cgroup, requested).map_err(|source| {
                let uuid = self.limit.uuid.clone();
                HookError::NotSet { uuid, requested, source }
            })?,
            Limiter::Kernel(region) => dmem::limit(cgroup, region, requested)?,
        };
        check_read_back(self.limit, actual)
    }

    fn lift(&self, cgroup: &Path) -> Result<(), HookError> {
        match &self.limiter {
            Limiter::Driver(gpu) => lift(gpu, cgroup).map_err(|source| {
                let uuid = self.limit.uuid.clone();
                HookError::Gpu { uuid, source }
            }),
            Limiter::Kernel(region) => dmem::lift(cgroup, region),
        }
    }
}

/// Sets a limit through the driver. Returns the limit that is read back, in bytes; `None` for no limit.
fn limit_by_driver(gpu: &Gpu, cgroup: &Path, bytes: u64) -> Result<Option<u64>, NvmlError> {
    gpu.set_memory_limits(cgroup, MemoryLimits { hard: Some(bytes), ..NO_LIMITS })?;
    Ok(gpu.memory_limits(cgroup)?.and_then(|limits| limits.hard))
}

/// Checks the limit that was read back. The driver may have rounded the limit up to whole pages; the kernel may not.
fn check_read_back(limit: &GpuMemoryLimit, actual: Option<u64>) -> Result<LimitedGpu, HookError> {
    let (uuid, region, requested) = (limit.uuid.clone(), limit.region.clone(), limit.hard_bytes());
    let (limiter, rounded) = if region.is_some() {
        ("kernel", requested)
    } else {
        ("driver", requested.next_multiple_of(PAGE_BYTES))
    };
    match actual.filter(|actual| [requested, rounded].contains(actual)) {
        Some(hard_bytes) => Ok(LimitedGpu { uuid, region, hard_bytes }),
        None => Err(HookError::Mismatch { uuid, requested, limiter, actual }),
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
        for (requested, actual, expected) in [
            (4, 4, true),
            (3, 3, true),
            (3, 4, true),
            (3, 2, false),
            (4, 6, false),
            (4, 0, false),
            (1, 4, false),
        ] {
            let result = check_read_back(&limit(requested, None), Some(actual * MIB));
            assert_eq!(result.is_ok(), expected, "{requested} {actual}");
        }
        check_read_back(&limit(4, None), Some(4 * MIB - 1)).expect_err("one byte less");
    }

    #[test]
    fn the_kernel_must_not_round_a_limit() {
        let limit = limit(3, Some("drm/0000:03:00.0/vram"));
        let limited = check_read_back(&limit, Some(3 * MIB)).expect("equal");
        assert_eq!((limited.region, limited.hard_bytes), (limit.region.clone(), 3 * MIB));
        for (actual, expected) in [
            (Some(4 * MIB), "the kernel reads back 4194304 bytes"),
            (Some(3 * MIB - 1), "the kernel reads back 3145727 bytes"),
            (None, "the kernel reads back no limit"),
        ] {
            let error = check_read_back(&limit, actual).expect_err(expected).to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
