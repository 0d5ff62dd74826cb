//! Snapshots of a channel: published when they are news, and waited for.

use std::future::pending;

use tokio::sync::watch::{Receiver, Sender};

/// Waits for the next change; for ever on a channel whose sender is gone.
pub async fn changed<T>(receiver: &mut Receiver<T>) {
    if receiver.changed().await.is_err() {
        pending::<()>().await;
    }
}

/// Publishes a snapshot unless it is the one before; says whether it was published.
pub fn publish<T: PartialEq>(sender: &Sender<T>, snapshot: T) -> bool {
    sender.send_if_modified(|known| {
        let is_news = *known != snapshot;
        if is_news {
            *known = snapshot;
        }
        is_news
    })
}
