//! Waits of tests: for a successful poll, a value in a channel, or the end of a future.

use std::{fmt, path::Path, time::Duration};

use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

/// Timeout of every wait. Even a busy machine needs less.
pub const TIMEOUT: Duration = Duration::from_secs(90);

/// Interval between two polls. A poll may read all metrics: a shorter interval starves other tests.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Polls until a poll succeeds, and returns its value. The error of a failed poll is the state seen, for the panic
/// after the timeout.
pub async fn until<T, S: fmt::Debug, Poll: Future<Output = Result<T, S>>>(
    awaited: &str,
    mut poll: impl FnMut() -> Poll,
) -> T {
    let mut last_seen = None;
    let polls = async {
        loop {
            match poll().await {
                Ok(value) => return value,
                Err(state) => last_seen = Some(state),
            }
            sleep(POLL_INTERVAL).await;
        }
    };
    let value = timeout(TIMEOUT, polls).await.ok();
    value.unwrap_or_else(|| panic!("{awaited}: not within {TIMEOUT:?}, last seen: {last_seen:#?}"))
}

/// Waits until a file or folder exists.
pub async fn until_exists(path: &Path) {
    let awaited = format!("{} exists", path.display());
    until(&awaited, async || path.symlink_metadata()).await;
}

/// Waits until a file or folder no longer exists.
pub async fn until_removed(path: &Path) {
    let awaited = format!("{} is removed", path.display());
    until(&awaited, async || path.symlink_metadata().map_or(Ok(()), Err)).await;
}

/// Waits until the value in a channel meets a condition, and returns it.
pub async fn until_value<T: Clone + fmt::Debug>(
    awaited: &str,
    values: &watch::Receiver<T>,
    condition: impl FnMut(&T) -> bool,
) -> T {
    let mut values = values.clone();
    let value = timeout(TIMEOUT, values.wait_for(condition)).await.ok();
    let value = value.map(|value| value.expect("an open channel").clone());
    value.unwrap_or_else(|| {
        panic!("{awaited}: not within {TIMEOUT:?}, last seen: {:#?}", values.borrow())
    })
}

/// Waits until a future ends, and returns its output.
pub async fn within_timeout<T>(awaited: &str, future: impl Future<Output = T>) -> T {
    let output = timeout(TIMEOUT, future).await;
    output.unwrap_or_else(|_| panic!("{awaited}: not within {TIMEOUT:?}"))
}
