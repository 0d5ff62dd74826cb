//! Work for many things at once, and for each of them one piece after the other.
//!
//! ```text
//!   begin ──> a task per key ──> next: its key and outcome
//!     └──> waits while its key has one ──^
//! ```
//!
//! # Guarantees
//!
//! Of one key never two pieces run at a time; they begin in the order in which they were given. No key waits for another.
//! Dropping all of it ends what runs at its next `.await`, and forgets what waits.
//!
//! # Assumptions
//!
//! The work does not panic. The one who gave it asks for what is [next](Tasks::next) all the time: what waits begins there.

use std::{
    collections::{BTreeMap, VecDeque},
    pin::Pin,
};

use tokio::task::JoinSet;

/// One task at a time for each key.
#[derive(Debug)]
pub struct Tasks<K, T> {
    running: JoinSet<(K, T)>,
    /// By key that has a task: what waits for its end.
    waiting: BTreeMap<K, VecDeque<Waiting<T>>>,
}

/// A piece of work that has not begun.
struct Waiting<T>(Pin<Box<dyn Future<Output = T> + Send>>);

// === impl Tasks ===

impl<K: Clone + Ord + Send + 'static, T: Send + 'static> Tasks<K, T> {
    /// Begins work for a key, once all that was given for it before is done.
    pub fn begin(&mut self, key: K, work: impl Future<Output = T> + Send + 'static) {
        if let Some(waiting) = self.waiting.get_mut(&key) {
            return waiting.push_back(Waiting(Box::pin(work)));
        }
        self.waiting.insert(key.clone(), VecDeque::new());
        self.spawn(key, work);
    }

    /// The key has a task.
    pub fn is_busy(&self, key: &K) -> bool {
        self.waiting.contains_key(key)
    }

    /// The next piece that is done, with its key; `None` where nothing runs. Can be dropped without loss.
    pub async fn next(&mut self) -> Option<(K, T)> {
        let done = self.running.join_next().await?;
        let (key, outcome) = done.expect("work neither panics nor is cancelled");
        match self.waiting.get_mut(&key).and_then(VecDeque::pop_front) {
            Some(Waiting(work)) => self.spawn(key.clone(), work),
            None => drop(self.waiting.remove(&key)),
        }
        Some((key, outcome))
    }

    fn spawn(&mut self, key: K, work: impl Future<Output = T> + Send + 'static) {
        self.running.spawn(async move { (key, work.await) });
    }
}

impl<K, T> Default for Tasks<K, T> {
    fn default() -> Self {
        Self { running: JoinSet::new(), waiting: BTreeMap::new() }
    }
}

impl<T> std::fmt::Debug for Waiting<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Waiting")
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{Duration, Instant, sleep};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_key_has_one_task_after_the_other_and_keys_do_not_wait_for_each_other() {
        let (mut tasks, begun) = (Tasks::default(), Instant::now());
        for (key, number) in [("a", 1), ("a", 2), ("b", 3), ("a", 4)] {
            tasks.begin(key, async move {
                sleep(Duration::from_secs(number)).await;
                (number, begun.elapsed().as_secs())
            });
        }
        assert!(tasks.is_busy(&"a") && tasks.is_busy(&"b") && !tasks.is_busy(&"c"));
        let mut done = Vec::new();
        while let Some((key, (number, at))) = tasks.next().await {
            done.push((key, number, at));
        }
        done.sort_unstable();
        assert_eq!(done, [("a", 1, 1), ("a", 2, 3), ("a", 4, 7), ("b", 3, 3)]);
        assert!(!tasks.is_busy(&"a") && !tasks.is_busy(&"b"));
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_lost_when_nobody_waits_for_the_next_one() {
        let mut tasks = Tasks::default();
        for number in [1, 2] {
            tasks.begin("a", async move { number });
        }
        tokio::select! {
            biased;
            () = std::future::ready(()) => {}
            _ = tasks.next() => panic!("it has not begun"),
        }
        assert_eq!(tasks.next().await, Some(("a", 1)));
        assert_eq!(tasks.next().await, Some(("a", 2)));
        assert_eq!(tasks.next().await, None);
    }
}
