//! Wait for the end of all processes on a GPU, since a program that outlives its container still holds memory.

use tokio::time::{Duration, sleep};
use windlass_discovery::mig::{RETRY_DELAY, retry_until_initialised};
use windlass_host::{abbreviate::first_few, deadline};

use super::steps::{StepContext, StepError};

/// Limit on the processes that an error names.
const MAX_NAMED: usize = 4;

/// Waits for the last process to end, up to the limit, or names those that remain.
pub(super) async fn wait_idle(context: &StepContext, limit: Duration) -> Result<(), StepError> {
    let idle = deadline::cancel_after(limit.saturating_sub(RETRY_DELAY), async |deadline_passed| {
        loop {
            let compute_pids = retry_until_initialised(&deadline_passed, || {
                context.mig.compute_pids(&context.device)
            })
            .await?;
            if compute_pids.is_empty() {
                return Ok(());
            }
            if deadline_passed.is_cancelled() {
                // Program names go into the log only: the error is shown to the next tenant.
                let (device, processes) = (&context.device, with_names(context, &compute_pids));
                tracing::warn!(%device, processes, "GPU still in use: end these processes");
                return Err(StepError::ProcessesRunning(first_few(&compute_pids, MAX_NAMED)));
            }
            sleep(RETRY_DELAY).await;
        }
    });
    idle.await
}

/// Process ids with program names, where the host's `/proc` has them. The driver lists the host's ids.
fn with_names(context: &StepContext, compute_pids: &[u32]) -> String {
    let named_pid = |pid: &u32| match context.host.read_text(format!("/proc/{pid}/comm")) {
        Some(name) => format!("{pid} ({})", name.trim()),
        None => pid.to_string(),
    };
    first_few(compute_pids.iter().map(named_pid), MAX_NAMED)
}
