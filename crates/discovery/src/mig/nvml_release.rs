//! Shutdown of NVML for a GPU reset: a reset needs every handle closed, and NVML holds all GPUs open.
//!
//! ```text
//!   connected ──requested──> shut down ──> let go of ──the last one is done──> initialised anew
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
pub struct NvmlReleaseHandle(mpsc::Sender<oneshot::Sender<NvmlRelease>>);

/// Keeps NVML shut down until it is dropped.
#[derive(Debug)]
pub struct NvmlRelease {
    _until_dropped: oneshot::Sender<Infallible>,
}

/// Requests for a shutdown; a requester may have given up.
pub type NvmlReleaseRequests = mpsc::Receiver<oneshot::Sender<NvmlRelease>>;

/// Channel capacity of requests.
const WAITING: usize = 64;

/// Delay between retries; each attempt makes the driver access the GPU.
pub const PAUSE: Duration = Duration::from_millis(500);

// === impl NvmlReleaseHandle ===

impl NvmlReleaseHandle {
    /// A handle and its requests.
    pub fn new() -> (Self, NvmlReleaseRequests) {
        let (send, requests) = mpsc::channel(WAITING);
        (Self(send), requests)
    }

    /// Waits until NVML is shut down; `None` if the agent stops.
    pub(crate) async fn begin(&self) -> Option<NvmlRelease> {
        let (reply, answer) = oneshot::channel();
        self.0.send(reply).await.ok()?;
        answer.await.ok()
    }
}

/// Grants this and all overlapping requests; returns when the last one ends.
pub async fn rest(first: oneshot::Sender<NvmlRelease>, requests: &mut NvmlReleaseRequests) {
    let mut under_way = JoinSet::new();
    grant(first, &mut under_way);
    while !under_way.is_empty() {
        tokio::select! {
            Some(request) = requests.recv() => grant(request, &mut under_way),
            Some(_) = under_way.join_next() => {}
        }
    }
}

fn grant(request: oneshot::Sender<NvmlRelease>, under_way: &mut JoinSet<()>) {
    let (until_dropped, over) = oneshot::channel();
    // A requester that gave up drops its grant at once.
    drop(request.send(NvmlRelease { _until_dropped: until_dropped }));
    under_way.spawn(async move { drop(over.await) });
}

/// Retries while NVML is not initialised, as during a shutdown for a reset, until cancelled.
pub async fn patiently<T, F: Future<Output = Result<T, PartitionError>>>(
    over: &CancellationToken,
    call: impl Fn() -> F,
) -> Result<T, PartitionError> {
    loop {
        match call().await {
            Err(PartitionError { why: MigFailure::NoDriver, .. }) if !over.is_cancelled() => {
                sleep(PAUSE).await;
            }
            outcome => return outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_recess_lasts_until_the_last_who_asked_for_it_is_done() {
        let (desk, mut requests) = NvmlReleaseHandle::new();
        let (first, second) = (desk.clone(), desk);
        let releases = async { tokio::join!(first.begin(), second.begin()) };
        let resting = async {
            let request = requests.recv().await.expect("two requests");
            rest(request, &mut requests).await;
        };
        let using = async {
            let (first, second) = releases.await;
            assert!(first.is_some() && second.is_some());
        };
        tokio::join!(resting, using);
    }
}
