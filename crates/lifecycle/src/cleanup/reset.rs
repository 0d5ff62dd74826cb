//! Reset of a GPU. It clears a tenant's memory content, hanging contexts and error counts.
//!
//! `nvidia-smi` refuses to reset a GPU that a process has open, so the agent closes NVML for the reset.

use tokio::time::Duration;
use windlass_discovery::mig::{RETRY_DELAY, retry_until_initialised};
use windlass_host::{AGENT_ENDS, deadline};

use super::steps::{StepContext, StepError};

/// Resets the GPU, and waits until the driver answers for it again.
pub(super) async fn reset(context: &StepContext, limit: Duration) -> Result<(), StepError> {
    let outcome =
        deadline::cancel_after(limit.saturating_sub(RETRY_DELAY), async |deadline_passed| {
            if let Some(reason) = context.plan.reset_conflict {
                return Err(StepError::NotReset(reason.to_owned()));
            }
            let Some(shutdown_guard) = context.mig.shut_down_nvml().await else {
                return Err(StepError::NotReset(AGENT_ENDS.to_owned()));
            };
            context.mig.nvidia_smi().run(&["--gpu-reset", "-i", context.device.as_str()]).await?;
            drop(shutdown_guard);
            retry_until_initialised(&deadline_passed, || context.mig.compute_pids(&context.device))
                .await?;
            tracing::info!(device = %context.device, "GPU reset");
            Ok(())
        });
    outcome.await
}
