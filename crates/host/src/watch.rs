//! Helpers for `watch` channels.

use std::future::pending;

use tokio::sync::watch::{Receiver, Sender};

/// Waits for the next change. Waits forever once the sender is dropped.
pub async fn changed<T>(receiver: &mut Receiver<T>) {
    if receiver.changed().await.is_err() {
        pending::<()>().await;
    }
}

/// Waits until a value meets the condition. Waits forever once the sender is dropped.
pub async fn until<T>(receiver: &mut Receiver<T>, is_met: impl FnMut(&T) -> bool) {
    if receiver.wait_for(is_met).await.is_err() {
        pending::<()>().await;
    }
}

/// Publishes a value unless it equals the last one. Returns true if it published.
pub fn publish_if_changed<T: PartialEq>(sender: &Sender<T>, value: T) -> bool {
    sender.send_if_modified(|current| {
        let is_new = *current != value;
        if is_new {
            *current = value;
        }
        is_new
    })
}
