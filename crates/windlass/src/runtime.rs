//! The async runtime of a command.

use std::{future::Future, time::Duration};

use anyhow::{Context as _, Result};

/// Shutdown limit: a thread that hangs in a driver call must not keep the process alive.
const SHUTDOWN_LIMIT: Duration = Duration::from_millis(500);

/// Idle time after which a thread for blocking work ends. The watchdog measures every second: threads that end after one
/// would be made anew each time.
const THREAD_KEEP_ALIVE: Duration = Duration::from_secs(2);

/// Runs on one thread: an agent waits far more than it computes.
pub(crate) fn block_on(command: impl Future<Output = Result<()>>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_keep_alive(THREAD_KEEP_ALIVE)
        .build()
        .context("cannot start the async runtime")?;
    let outcome = runtime.block_on(command);
    runtime.shutdown_timeout(SHUTDOWN_LIMIT);
    outcome
}
