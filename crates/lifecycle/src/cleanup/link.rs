//! Link of a network interface after its container. The kernel returns the interface to the host when it removes the
//! container's network namespace, and the interface is then down.

use std::path::PathBuf;

use tokio::time::{Duration, sleep};
use windlass_host::deadline;

use super::steps::{StepContext, StepError};

/// Poll interval.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// `IFF_UP` in `linux/if.h`.
const IFF_UP: u32 = 1;

/// Waits for the interface to return, up to the limit, and sets it up.
pub(super) async fn set_up(context: &StepContext, limit: Duration) -> Result<(), StepError> {
    let folder = context.plan.folder.clone().ok_or_else(|| StepError::NoFolder("net".into()))?;
    let search =
        deadline::cancel_after(limit.saturating_sub(POLL_INTERVAL), async |deadline_passed| {
            loop {
                let name = context.host.entry_names(folder.join("net")).into_iter().next();
                if name.is_some() || deadline_passed.is_cancelled() {
                    return name;
                }
                sleep(POLL_INTERVAL).await;
            }
        });
    let name = search.await.ok_or(StepError::InContainerNamespace)?;
    let flags = PathBuf::from("net").join(name).join("flags");
    let text = context.host.read_text(folder.join(&flags)).unwrap_or_default();
    let current = u32::from_str_radix(text.trim().trim_start_matches("0x"), 16).unwrap_or_default();
    if current & IFF_UP == IFF_UP {
        return Ok(());
    }
    context.write(&flags, &format!("{:#x}", current | IFF_UP)).await
}
