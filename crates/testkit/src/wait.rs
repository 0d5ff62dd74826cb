//! Waits of the tests: for a poll, a channel's value, or a future.

use std::{fmt, path::Path, time::Duration};

use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

/// Limit of every wait. A busy machine needs less.
pub const LIMIT: Duration = Duration::from_secs(90);

/// Interval between two polls.
const PAUSE: Duration = Duration::from_millis(5);

/// Polls until a poll succeeds, and returns its value. A failed poll returns the state that it saw.
pub async fn until<T, S: fmt::Debug, Look: Future<Output = Result<T, S>>>(
    awaited: &str,
    mut look: impl FnMut() -> Look,
) -> T {
    let mut seen = None;
    let looking = async {
        loop {
            match look().await {
                Ok(found) => return found,
                Err(instead) => seen = Some(instead),
            }
            sleep(PAUSE).await;
        }
    };
    let found = timeout(LIMIT, looking).await.ok();
    found.unwrap_or_else(|| panic!("{awaited}: not within {LIMIT:?}, last seen: {seen:#?}"))
}

/// Waits until a file or folder exists.
pub async fn exists(path: &Path) {
    let awaited = format!("{} is there", path.display());
    until(&awaited, async || path.symlink_metadata()).await;
}

/// Waits until a file or folder is gone.
pub async fn vanishes(path: &Path) {
    let awaited = format!("{} is gone", path.display());
    until(&awaited, async || path.symlink_metadata().map_or(Ok(()), Err)).await;
}

/// Waits until the value in a channel fulfils a condition, and returns it.
pub async fn value<T: Clone + fmt::Debug>(
    awaited: &str,
    values: &watch::Receiver<T>,
    condition: impl FnMut(&T) -> bool,
) -> T {
    let mut values = values.clone();
    let found = timeout(LIMIT, values.wait_for(condition)).await.ok();
    let found = found.map(|found| found.expect("its sender is there").clone());
    found.unwrap_or_else(|| {
        panic!("{awaited}: not within {LIMIT:?}, last seen: {:#?}", values.borrow())
    })
}

/// Waits until a future ends.
pub async fn in_time<T>(awaited: &str, future: impl Future<Output = T>) -> T {
    let ended = timeout(LIMIT, future).await;
    ended.unwrap_or_else(|_| panic!("{awaited}: not within {LIMIT:?}"))
}
