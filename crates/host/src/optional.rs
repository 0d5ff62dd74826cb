//! Futures that may be absent.

use std::future::pending;

/// Awaits a future. Waits forever for `None`.
pub async fn or_pending<F: Future>(future: Option<F>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => pending().await,
    }
}

/// Awaits the future in a slot, then empties the slot. Waits forever for an empty slot.
pub async fn take_finished<F: Future + Unpin>(slot: &mut Option<F>) -> F::Output {
    let output = or_pending(slot.as_mut()).await;
    *slot = None;
    output
}
