//! Whether anybody computes on a GPU still: a program that outlived its container has the memory, and what the
//! last tenant left in it.

use tokio::time::{Duration, sleep};
use tokio_util::sync::CancellationToken;
use windlass_discovery::mig::{PAUSE, patiently};
use windlass_host::{abbreviate::first_few, deadline};

use super::steps::{Bench, StepError};

/// So many processes are told.
const TOLD: usize = 4;

/// Waits for the last process to go, for as long as there is time, and says who stays.
pub(super) async fn idle(bench: &Bench, limit: Duration) -> Result<(), StepError> {
    deadline::beside(limit.saturating_sub(PAUSE), |over| idle_before(over, bench)).await
}

async fn idle_before(over: CancellationToken, bench: &Bench) -> Result<(), StepError> {
    loop {
        let computing = patiently(&over, || bench.gpus.computing(&bench.device)).await?;
        if computing.is_empty() {
            return Ok(());
        }
        if over.is_cancelled() {
            // Programs' names are told to the operator only: the next tenant reads the error.
            tracing::warn!(device = %bench.device, processes = named(bench, &computing), "still in use");
            return Err(StepError::Busy(first_few(&computing, TOLD)));
        }
        sleep(PAUSE).await;
    }
}

/// Numbers and names, as far as the host tells names: a number is the driver's, that of the host.
fn named(bench: &Bench, computing: &[u32]) -> String {
    let name = |process: &u32| match bench.host.text(format!("/proc/{process}/comm")) {
        Some(name) => format!("{process} ({})", name.trim()),
        None => process.to_string(),
    };
    first_few(computing.iter().map(name), TOLD)
}
