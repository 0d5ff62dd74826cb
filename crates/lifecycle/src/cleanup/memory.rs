//! Wait for free GPU memory. Memory that stays in use after the last program would be unavailable to the next one.

use tokio::time::{Duration, sleep};
use windlass_discovery::mig::{RETRY_DELAY, retry_until_initialised};
use windlass_host::deadline;

use super::steps::{StepContext, StepError};

const MIB: u64 = 1 << 20;

/// Waits until at most `max_bytes` are used. Fails with the used memory if the limit passes first.
pub(super) async fn wait_free(
    context: &StepContext,
    max_bytes: u64,
    limit: Duration,
) -> Result<(), StepError> {
    // The last check comes up to one delay after the deadline.
    let wait = deadline::cancel_after(limit.saturating_sub(RETRY_DELAY), async |deadline_passed| {
        loop {
            let used_bytes = retry_until_initialised(&deadline_passed, || {
                context.mig.memory_used(&context.device)
            })
            .await?;
            if used_bytes <= max_bytes {
                return Ok(());
            }
            if deadline_passed.is_cancelled() {
                return Err(StepError::MemoryUsed { used: used_bytes / MIB, max: max_bytes / MIB });
            }
            sleep(RETRY_DELAY).await;
        }
    });
    wait.await
}
