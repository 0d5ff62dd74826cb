//! Whether a GPU's memory is free: what the driver counts as used after the last program is gone is held by
//! something that nobody sees, and is less memory for the next one.

use tokio::time::{Duration, sleep};
use tokio_util::sync::CancellationToken;
use windlass_discovery::mig::{PAUSE, patiently};
use windlass_host::deadline;

use super::steps::{Bench, StepError};

const MIB: u64 = 1 << 20;

/// Waits until no more than so much is used, for as long as there is time, and says how much stays.
pub(super) async fn free(bench: &Bench, most: u64, limit: Duration) -> Result<(), StepError> {
    deadline::beside(limit.saturating_sub(PAUSE), |over| free_before(over, bench, most)).await
}

async fn free_before(over: CancellationToken, bench: &Bench, most: u64) -> Result<(), StepError> {
    loop {
        let used = patiently(&over, || bench.gpus.memory_used(&bench.device)).await?;
        if used <= most {
            return Ok(());
        }
        if over.is_cancelled() {
            return Err(StepError::MemoryUsed { used: used / MIB, most: most / MIB });
        }
        sleep(PAUSE).await;
    }
}
