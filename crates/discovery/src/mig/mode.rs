//! MIG mode changes in NVML. All calls block, possibly forever.

use windlass_core::device::DeviceId;
use windlass_nvml::{Gpu, MigMode, Nvml, NvmlError};

use super::{
    MigFailure,
    instance::{gpu, instances},
};

/// Turns MIG on, if it is off and no process computes on the GPU.
pub(super) fn enable(nvml: &Nvml, id: &DeviceId) -> Result<(), MigFailure> {
    let gpu = gpu(nvml, id)?;
    if gpu.mig_mode()? == MigMode::Enabled {
        return Ok(());
    }
    check_idle(&gpu)?;
    revert_on_error(gpu.enable_mig(), || gpu.disable_mig())?;
    tracing::info!(gpu = %id, "MIG turned on for a claim");
    Ok(())
}

/// Turns MIG off, if it is on, without instances or compute processes.
pub(super) fn disable(nvml: &Nvml, id: &DeviceId) -> Result<(), MigFailure> {
    let gpu = gpu(nvml, id)?;
    if gpu.mig_mode()? != MigMode::Enabled {
        return Ok(());
    }
    let partitions: Vec<_> = instances(&gpu, id)?.iter().map(ToString::to_string).collect();
    if !partitions.is_empty() {
        return Err(MigFailure::HasInstances(partitions.join(", ")));
    }
    check_idle(&gpu)?;
    revert_on_error(gpu.disable_mig(), || gpu.enable_mig())?;
    tracing::info!(gpu = %id, "MIG turned off for a claim");
    Ok(())
}

fn check_idle(gpu: &Gpu) -> Result<(), MigFailure> {
    if gpu.compute_pids()?.is_empty() { Ok(()) } else { Err(MigFailure::InUse) }
}

/// Result of a mode change. A failed change is reverted; otherwise NVML would apply it at the next reset.
fn revert_on_error(
    outcome: Result<(), NvmlError>,
    revert: impl FnOnce() -> Result<(), NvmlError>,
) -> Result<(), MigFailure> {
    let Err(error) = outcome else { return Ok(()) };
    // The caller gets the error of the change. An error of the reversal is dropped.
    let _ = revert();
    if error.is_in_use() { Err(MigFailure::InUse) } else { Err(error.into()) }
}
