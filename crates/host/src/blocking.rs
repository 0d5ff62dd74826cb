//! Blocking work on threads of its own.

use tokio::task::spawn_blocking;

/// Runs work that blocks, such as file access, beside the caller's thread. The work must not panic.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    spawn_blocking(work).await.expect("blocking work neither panics nor is cancelled")
}
