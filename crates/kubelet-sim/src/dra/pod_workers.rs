//! One lock per pod, so that the work on a pod's claims is sequential. The end of a pod cancels earlier work.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::OwnedMutexGuard;
use tokio_util::sync::CancellationToken;

/// Locks of the pods that have work in progress.
#[derive(Debug, Default)]
pub(crate) struct PodWorkers {
    by_pod: Mutex<BTreeMap<String, Worker>>,
}

#[derive(Clone, Debug, Default)]
struct Worker {
    lock: Arc<tokio::sync::Mutex<()>>,
    /// Cancels the current work on the pod.
    cancelled: CancellationToken,
}

/// Exclusive right to work on a pod, until the guard is dropped.
#[derive(Debug)]
pub(crate) struct WorkerGuard {
    _lock: OwnedMutexGuard<()>,
    cancelled: CancellationToken,
}

// === impl PodWorkers ===

impl PodWorkers {
    /// Waits until no other work on the pod is in progress.
    pub(crate) async fn lock(&self, pod: &str) -> WorkerGuard {
        let Worker { lock, cancelled } = self.worker(pod);
        WorkerGuard { _lock: lock.lock_owned().await, cancelled }
    }

    /// Cancels the current work on an ending pod, and waits until that work has stopped.
    pub(crate) async fn cancel_and_lock(&self, pod: &str) -> WorkerGuard {
        let worker = self.worker(pod);
        worker.cancelled.cancel();
        let token = CancellationToken::new();
        if let Some(stored_worker) = self.by_pod().get_mut(pod) {
            stored_worker.cancelled = token.clone();
        }
        WorkerGuard { _lock: worker.lock.lock_owned().await, cancelled: token }
    }

    /// The pod's worker, possibly a new one. Drops the workers that no caller uses.
    fn worker(&self, pod: &str) -> Worker {
        let mut by_pod = self.by_pod();
        by_pod.retain(|_, worker| Arc::strong_count(&worker.lock) > 1);
        by_pod.entry(pod.to_owned()).or_default().clone()
    }

    fn by_pod(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Worker>> {
        self.by_pod.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl WorkerGuard ===

impl WorkerGuard {
    /// Runs the work; `None` if [`PodWorkers::cancel_and_lock`] cancels it.
    pub(crate) async fn run<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        self.cancelled.run_until_cancelled(work).await
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test]
    async fn the_end_of_a_pod_cancels_its_work_and_pods_do_not_wait_for_each_other() {
        let workers = PodWorkers::default();
        let work = async {
            let guard = workers.lock("pod").await;
            guard.run(pending::<()>()).await
        };
        let release = async {
            workers.lock("other").await.run(async {}).await.expect("another pod");
            let guard = workers.cancel_and_lock("pod").await;
            guard.run(async { "released" }).await
        };
        assert_eq!(tokio::join!(work, release), (None, Some("released")));
        workers.lock("next").await;
        assert_eq!(workers.by_pod().len(), 1, "unused workers are dropped");
    }
}
