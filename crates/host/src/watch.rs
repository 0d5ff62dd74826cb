//! Waiting for the next snapshot of a channel.

use std::future::pending;

use tokio::sync::watch::Receiver;

/// Waits for the next change; for ever on a channel whose sender is gone.
pub async fn changed<T>(receiver: &mut Receiver<T>) {
    if receiver.changed().await.is_err() {
        pending::<()>().await;
    }
}
