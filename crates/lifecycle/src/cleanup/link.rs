//! A network interface after a container had it: the kernel gives it back to the host when the container's
//! network ends, and it is down then.

use std::path::PathBuf;

use tokio::time::{Duration, sleep};
use windlass_host::deadline;

use super::steps::{Bench, StepError};

/// How long until it is looked for again.
const PAUSE: Duration = Duration::from_millis(200);

/// `IFF_UP` in `linux/if.h`.
const UP: u32 = 1;

/// Waits for the interface to come back, for as long as there is time, and sets it up.
pub(super) async fn up(bench: &Bench, limit: Duration) -> Result<(), StepError> {
    let folder = bench.care.folder.clone().ok_or_else(|| StepError::NoFolder("net".into()))?;
    let found = deadline::beside(limit.saturating_sub(PAUSE), async |over| {
        loop {
            let name = bench.host.names(folder.join("net")).into_iter().next();
            if name.is_some() || over.is_cancelled() {
                return name;
            }
            sleep(PAUSE).await;
        }
    });
    let name = found.await.ok_or(StepError::Away)?;
    let flags = PathBuf::from("net").join(name).join("flags");
    let text = bench.host.text(folder.join(&flags)).unwrap_or_default();
    let known = u32::from_str_radix(text.trim().trim_start_matches("0x"), 16).unwrap_or_default();
    if known & UP == UP {
        return Ok(());
    }
    bench.write(&flags, &format!("{:#x}", known | UP)).await
}
