//! The reset of a GPU, which ends whatever a tenant left on it: memory, contexts that hang, counted errors.
//!
//! `nvidia-smi` refuses one that anybody has open, the agent like every monitor, so NVML is let go of for it.

use tokio::time::Duration;
use tokio_util::sync::CancellationToken;
use windlass_discovery::mig::{PAUSE, patiently};
use windlass_host::deadline;

use super::steps::{Bench, StepError};

/// Resets the GPU, and waits until the driver answers for it again.
pub(super) async fn reset(bench: &Bench, limit: Duration) -> Result<(), StepError> {
    deadline::beside(limit.saturating_sub(PAUSE), |over| reset_before(over, bench)).await
}

async fn reset_before(over: CancellationToken, bench: &Bench) -> Result<(), StepError> {
    if let Some(why) = bench.care.bound {
        return Err(StepError::NotReset(why.to_owned()));
    }
    let Some(recess) = bench.gpus.recess().await else {
        return Err(StepError::NotReset("the agent ends".to_owned()));
    };
    bench.gpus.nvidia_smi().run(&["--gpu-reset", "-i", bench.device.as_str()]).await?;
    drop(recess);
    patiently(&over, || bench.gpus.computing(&bench.device)).await?;
    tracing::info!(device = %bench.device, "GPU reset");
    Ok(())
}
