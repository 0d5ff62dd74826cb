//! Whether anybody computes on a GPU still: a program that outlived its container has the memory, and what the
//! last tenant left in it.

use tokio::time::{Duration, Instant, sleep};

use super::{
    memory::{PAUSE, patiently},
    steps::{Bench, StepError},
};

/// So many processes are told by name.
const TOLD: usize = 4;

/// Waits for the last process to go, for as long as there is time, and says who stays.
pub(super) async fn idle(bench: &Bench, limit: Duration) -> Result<(), StepError> {
    let until = Instant::now() + limit;
    loop {
        let computing = patiently(until, || bench.gpus.computing(&bench.device)).await?;
        if computing.is_empty() {
            return Ok(());
        }
        if Instant::now() + PAUSE >= until {
            return Err(StepError::Busy(named(bench, &computing)));
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
    let told: Vec<_> = computing.iter().take(TOLD).map(name).collect();
    let more = computing.len().saturating_sub(TOLD);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    told.join(", ") + &more
}
