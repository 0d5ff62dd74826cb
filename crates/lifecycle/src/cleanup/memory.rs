//! Wait for free GPU memory. Memory that stays in use after the last program would be missing for the next one.

use tokio::time::{Duration, sleep};
use windlass_discovery::mig::{PAUSE, retry_until_initialised};
use windlass_host::deadline;

use super::steps::{StepContext, StepError};

const MIB: u64 = 1 << 20;

/// Waits until at most `most` bytes are used, up to the limit. Fails with the used bytes.
pub(super) async fn wait_free(
    context: &StepContext,
    most: u64,
    limit: Duration,
) -> Result<(), StepError> {
    let free = deadline::beside(limit.saturating_sub(PAUSE), async |deadline_passed| {
        loop {
            let used = retry_until_initialised(&deadline_passed, || {
                context.gpus.memory_used(&context.device)
            })
            .await?;
            if used <= most {
                return Ok(());
            }
            if deadline_passed.is_cancelled() {
                return Err(StepError::MemoryUsed { used: used / MIB, most: most / MIB });
            }
            sleep(PAUSE).await;
        }
    });
    free.await
}
