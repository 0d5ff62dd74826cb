//! Shutdown of NVML for a GPU reset: a reset needs every handle closed, and NVML holds all GPUs open.
//!
//! ```text
//!   initialised ── first request ──> shut down ── last guard dropped ────> initialised again
//! ```

use std::convert::Infallible;

use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::{Duration, sleep},
};
use tokio_util::sync::CancellationToken;

use super::{MigFailure, PartitionError};

/// Handle to request a shutdown of NVML.
#[derive(Clone, Debug)]
pub struct NvmlShutdownHandle(mpsc::Sender<oneshot::Sender<NvmlShutdownGuard>>);

/// Keeps NVML shut down until it is dropped.
#[derive(Debug)]
pub struct NvmlShutdownGuard {
    _until_dropped: oneshot::Sender<Infallible>,
}

/// Requests for a shutdown. A requester may have timed out.
pub type NvmlShutdownRequests = mpsc::Receiver<oneshot::Sender<NvmlShutdownGuard>>;

/// Capacity of the request channel.
const MAX_REQUESTS: usize = 64;

/// Delay between retries; each attempt makes the driver access the GPU.
pub const RETRY_DELAY: Duration = Duration::from_millis(500);

// === impl NvmlShutdownHandle ===

impl NvmlShutdownHandle {
    /// Creates a handle and the receiver of its requests.
    pub fn new() -> (Self, NvmlShutdownRequests) {
        let (sender, requests) = mpsc::channel(MAX_REQUESTS);
        (Self(sender), requests)
    }

    /// Waits until NVML is shut down; `None` if the agent stops.
    pub(crate) async fn request(&self) -> Option<NvmlShutdownGuard> {
        let (reply, guard) = oneshot::channel();
        self.0.send(reply).await.ok()?;
        guard.await.ok()
    }
}

/// Sends a guard for the first request and for further requests that arrive meanwhile. Returns when the last guard is
/// dropped.
pub async fn grant_until_dropped(
    first: oneshot::Sender<NvmlShutdownGuard>,
    requests: &mut NvmlShutdownRequests,
) {
    let mut guard_tasks = JoinSet::new();
    grant(first, &mut guard_tasks);
    while !guard_tasks.is_empty() {
        tokio::select! {
            Some(request) = requests.recv() => grant(request, &mut guard_tasks),
            Some(_) = guard_tasks.join_next() => {}
        }
    }
}

fn grant(request: oneshot::Sender<NvmlShutdownGuard>, guard_tasks: &mut JoinSet<()>) {
    let (until_dropped, dropped) = oneshot::channel();
    // The guard of a requester that has timed out is dropped at once.
    drop(request.send(NvmlShutdownGuard { _until_dropped: until_dropped }));
    guard_tasks.spawn(async move { drop(dropped.await) });
}

/// Retries a call while NVML is not initialised, as during a shutdown for a reset. Once cancelled, returns the next
/// result.
pub async fn retry_until_initialised<T, F: Future<Output = Result<T, PartitionError>>>(
    cancelled: &CancellationToken,
    call: impl Fn() -> F,
) -> Result<T, PartitionError> {
    loop {
        match call().await {
            Err(PartitionError { failure: MigFailure::NoDriver, .. })
                if !cancelled.is_cancelled() =>
            {
                sleep(RETRY_DELAY).await;
            }
            outcome => return outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn nvml_stays_shut_down_until_the_last_guard_is_dropped() {
        let (handle, mut requests) = NvmlShutdownHandle::new();
        let (first, second) = (handle.clone(), handle);
        let guards = async { tokio::join!(first.request(), second.request()) };
        let grant_requests = async {
            let request = requests.recv().await.expect("two requests");
            grant_until_dropped(request, &mut requests).await;
        };
        let hold_guards = async {
            let (first, second) = guards.await;
            assert!(first.is_some() && second.is_some());
        };
        tokio::join!(grant_requests, hold_guards);
    }
}
