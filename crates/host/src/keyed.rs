//! Keyed tasks: one at a time per key, keys in parallel.
//!
//! ```text
//!   submit ──> a task per key ──> join_next: key and outcome
//!     └──> waits while the key has one ──^
//! ```
//!
//! # Guarantees
//!
//! Tasks of one key run one at a time, in order. Keys do not wait for each other. Dropping [`KeyedTasks`] cancels
//! running work at its next `.await` and drops waiting work.
//!
//! # Assumptions
//!
//! Work does not panic. The owner polls [`KeyedTasks::join_next`] continuously, which starts waiting work.

use std::{
    collections::{BTreeMap, VecDeque},
    pin::Pin,
};

use tokio::task::JoinSet;

/// One task at a time per key.
#[derive(Debug)]
pub struct KeyedTasks<K, T> {
    running: JoinSet<(K, T)>,
    /// Waiting work of each running key.
    waiting: BTreeMap<K, VecDeque<QueuedTask<T>>>,
}

/// Work that has not started.
struct QueuedTask<T>(Pin<Box<dyn Future<Output = T> + Send>>);

// === impl KeyedTasks ===

impl<K: Clone + Ord + Send + 'static, T: Send + 'static> KeyedTasks<K, T> {
    /// Starts work for a key after all earlier work of that key.
    pub fn submit(&mut self, key: K, work: impl Future<Output = T> + Send + 'static) {
        if let Some(waiting) = self.waiting.get_mut(&key) {
            return waiting.push_back(QueuedTask(Box::pin(work)));
        }
        self.waiting.insert(key.clone(), VecDeque::new());
        self.spawn(key, work);
    }

    /// True while work of the key runs or waits.
    pub fn is_busy(&self, key: &K) -> bool {
        self.waiting.contains_key(key)
    }

    /// Waits for the next finished work; `None` if no work runs. Cancel-safe.
    pub async fn join_next(&mut self) -> Option<(K, T)> {
        let finished = self.running.join_next().await?;
        let (key, outcome) = finished.expect("work neither panics nor is cancelled");
        match self.waiting.get_mut(&key).and_then(VecDeque::pop_front) {
            Some(QueuedTask(work)) => self.spawn(key.clone(), work),
            None => drop(self.waiting.remove(&key)),
        }
        Some((key, outcome))
    }

    fn spawn(&mut self, key: K, work: impl Future<Output = T> + Send + 'static) {
        self.running.spawn(async move { (key, work.await) });
    }
}

impl<K, T> Default for KeyedTasks<K, T> {
    fn default() -> Self {
        Self { running: JoinSet::new(), waiting: BTreeMap::new() }
    }
}

impl<T> std::fmt::Debug for QueuedTask<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("QueuedTask")
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{Duration, Instant, sleep};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn tasks_of_a_key_run_in_order_and_keys_do_not_wait_for_each_other() {
        let (mut tasks, start) = (KeyedTasks::default(), Instant::now());
        for (key, number) in [("a", 1), ("a", 2), ("b", 3), ("a", 4)] {
            tasks.submit(key, async move {
                sleep(Duration::from_secs(number)).await;
                (number, start.elapsed().as_secs())
            });
        }
        assert!(tasks.is_busy(&"a") && tasks.is_busy(&"b") && !tasks.is_busy(&"c"));
        let mut finished = Vec::new();
        while let Some((key, (number, seconds))) = tasks.join_next().await {
            finished.push((key, number, seconds));
        }
        finished.sort_unstable();
        assert_eq!(finished, [("a", 1, 1), ("a", 2, 3), ("a", 4, 7), ("b", 3, 3)]);
        assert!(!tasks.is_busy(&"a") && !tasks.is_busy(&"b"));
    }

    #[tokio::test(start_paused = true)]
    async fn no_outcome_is_lost_when_next_is_cancelled() {
        let mut tasks = KeyedTasks::default();
        for number in [1, 2] {
            tasks.submit("a", async move { number });
        }
        tokio::select! {
            biased;
            () = std::future::ready(()) => {}
            _ = tasks.join_next() => panic!("no task has run yet"),
        }
        assert_eq!(tasks.join_next().await, Some(("a", 1)));
        assert_eq!(tasks.join_next().await, Some(("a", 2)));
        assert_eq!(tasks.join_next().await, None);
    }
}
