//! Helpers for `watch` channels.

use std::future::pending;

use tokio::sync::watch::{Receiver, Sender};

/// Waits for the next change; forever once the sender is gone.
pub async fn changed<T>(receiver: &mut Receiver<T>) {
    if receiver.changed().await.is_err() {
        pending::<()>().await;
    }
}

/// Publishes a value unless it equals the last. Returns true if published.
pub fn publish<T: PartialEq>(sender: &Sender<T>, snapshot: T) -> bool {
    sender.send_if_modified(|known| {
        let is_news = *known != snapshot;
        if is_news {
            *known = snapshot;
        }
        is_news
    })
}
