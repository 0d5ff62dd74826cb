//! Compute mode of a GPU, set by driver calls that may never return. A MIG instance has no compute mode, and its GPU
//! keeps the default mode.

use std::{path::PathBuf, time::Duration};

use tokio::task::JoinSet;
use windlass_core::device::DeviceId;
use windlass_host::deadline;
use windlass_nvml::{ComputeMode, LoadError, Nvml, NvmlError};

/// Sets the compute mode of one GPU.
#[derive(Debug)]
pub(super) struct ModeSetter {
    device: DeviceId,
    deadline: Duration,
    /// The running call. While it hangs, it is awaited again instead of repeated.
    call: JoinSet<Result<(), ModeError>>,
}

/// Error of setting the compute mode.
#[derive(Debug, thiserror::Error)]
pub(super) enum ModeError {
    #[error("cannot set the compute mode: there is no libnvidia-ml.so.1")]
    NoLibrary,
    #[error("cannot set the compute mode")]
    Load(#[from] LoadError),
    #[error("cannot set the compute mode")]
    Refused(#[from] NvmlError),
    #[error("cannot set the compute mode: the driver did not answer within {0:?}")]
    Timeout(Duration),
}

/// Prefix of the UUID of a MIG instance in NVML.
const MIG: &str = "MIG-";

// === impl ModeSetter ===

impl ModeSetter {
    pub(super) fn new(device: DeviceId, deadline: Duration) -> Self {
        Self { device, deadline, call: JoinSet::new() }
    }

    /// Sets the mode by this NVML library, unless it is set.
    pub(super) async fn set(
        &mut self,
        library: Option<PathBuf>,
        mode: ComputeMode,
    ) -> Result<(), ModeError> {
        if self.device.as_str().starts_with(MIG) {
            return Ok(());
        }
        if !self.call.is_empty() {
            // The result of the earlier call does not matter, since the next call sets the mode again.
            self.finish().await.or_else(|error| match error {
                ModeError::Timeout(_) => Err(error),
                _ => Ok(()),
            })?;
        }
        let device = self.device.clone();
        self.call.spawn_blocking(move || set(library, &device, mode));
        self.finish().await
    }

    async fn finish(&mut self) -> Result<(), ModeError> {
        match deadline::timeout(self.deadline, self.call.join_next()).await {
            Ok(Some(Ok(result))) => result,
            Ok(Some(Err(_)) | None) | Err(_) => Err(ModeError::Timeout(self.deadline)),
        }
    }
}

fn set(library: Option<PathBuf>, device: &DeviceId, mode: ComputeMode) -> Result<(), ModeError> {
    let nvml = Nvml::load(&library.ok_or(ModeError::NoLibrary)?)?;
    let gpu = nvml.gpu_with_uuid(device.as_str())?;
    if gpu.compute_mode()? != mode {
        gpu.set_compute_mode(mode)?;
    }
    Ok(())
}
