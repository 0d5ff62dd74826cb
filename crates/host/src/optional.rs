//! Futures that may be absent.

use std::future::pending;

/// Awaits a future. Waits forever for `None`.
pub async fn optional<F: Future>(future: Option<F>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => pending().await,
    }
}

/// Awaits the future in a slot, then empties the slot. Waits forever for an empty slot.
pub async fn finished<F: Future + Unpin>(slot: &mut Option<F>) -> F::Output {
    let output = optional(slot.as_mut()).await;
    *slot = None;
    output
}
