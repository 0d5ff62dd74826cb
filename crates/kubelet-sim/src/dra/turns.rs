//! One worker per pod: work on a pod is sequential.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::OwnedMutexGuard;
use tokio_util::sync::CancellationToken;

/// Turns of the workers by pod.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    workers: Mutex<BTreeMap<String, Worker>>,
}

#[derive(Clone, Debug, Default)]
struct Worker {
    turn: Arc<tokio::sync::Mutex<()>>,
    /// Cancels work under way for the pod.
    given_up: CancellationToken,
}

/// Exclusive right to work on a pod.
#[derive(Debug)]
pub(crate) struct Turn {
    _turn: OwnedMutexGuard<()>,
    given_up: CancellationToken,
}

// === impl Turns ===

impl Turns {
    /// Waits until the pod has no other worker.
    pub(crate) async fn take(&self, pod: &str) -> Turn {
        let Worker { turn, given_up } = self.worker(pod);
        Turn { _turn: turn.lock_owned().await, given_up }
    }

    /// Cancels work under way for an ending pod, and waits until it is over.
    pub(crate) async fn take_to_end(&self, pod: &str) -> Turn {
        let worker = self.worker(pod);
        worker.given_up.cancel();
        let fresh = CancellationToken::new();
        if let Some(kept) = self.workers().get_mut(pod) {
            kept.given_up = fresh.clone();
        }
        Turn { _turn: worker.turn.lock_owned().await, given_up: fresh }
    }

    fn worker(&self, pod: &str) -> Worker {
        let mut workers = self.workers();
        workers.retain(|_, worker| Arc::strong_count(&worker.turn) > 1);
        workers.entry(pod.to_owned()).or_default().clone()
    }

    fn workers(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Worker>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Turn ===

impl Turn {
    /// Runs the work until the pod is to end; `None` if the end came first.
    pub(crate) async fn run<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        self.given_up.run_until_cancelled(work).await
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test]
    async fn the_end_of_a_pod_gives_up_what_is_under_way_and_pods_do_not_wait_for_each_other() {
        let turns = Turns::default();
        let stuck = async {
            let turn = turns.take("pod").await;
            turn.run(pending::<()>()).await
        };
        let end = async {
            turns.take("other").await.run(async {}).await.expect("another pod");
            let turn = turns.take_to_end("pod").await;
            turn.run(async { "released" }).await
        };
        assert_eq!(tokio::join!(stuck, end), (None, Some("released")));
        turns.take("next").await;
        assert_eq!(turns.workers().len(), 1, "the others are forgotten");
    }
}
