//! Retries of one task of the client: back-off, and a log line when the error changes.

use std::{
    hash::{DefaultHasher, Hasher as _},
    time::Duration,
};

use windlass_host::{backoff::backoff, causes};

use super::{Client, ClientTimeouts, ClusterError};

/// Retries of one task of the client.
pub(super) struct RequestBackoff {
    task: &'static str,
    timeouts: ClientTimeouts,
    /// Seed of the jitter, which differs between nodes.
    seed: u64,
    /// Number of consecutive failures.
    failures: u32,
    /// The last logged error; `None` after a success.
    logged: Option<String>,
}

// === impl RequestBackoff ===

impl RequestBackoff {
    pub(super) fn new(task: &'static str, client: &Client) -> Self {
        let seed = hash(&(client.node(), task));
        Self { task, timeouts: client.timeouts(), seed, failures: 0, logged: None }
    }

    /// Records a success.
    pub(super) fn record_success(&mut self) {
        self.failures = 0;
        if self.logged.take().is_some() {
            tracing::info!(part = self.task, "API server reachable again");
        }
    }

    /// Records a failure, and returns the pause before the next attempt.
    pub(super) fn record_failure(&mut self, error: &ClusterError) -> Duration {
        let error = causes(error);
        if self.logged.replace(error.clone()).as_ref() != Some(&error) {
            tracing::warn!(part = self.task, error, "API request failed, retrying with back-off");
        }
        self.failures = self.failures.saturating_add(1);
        self.retry_delay(self.failures)
    }

    /// Pause after this number of consecutive failures, for callers that count failures themselves.
    pub(super) fn retry_delay(&self, failures: u32) -> Duration {
        jittered_delay(failures, self.seed, &self.timeouts)
    }
}

/// Back-off with a jitter of plus or minus 25 percent: all nodes of a cluster lose their API server at once, and must
/// not retry at once.
fn jittered_delay(failures: u32, seed: u64, timeouts: &ClientTimeouts) -> Duration {
    let delay = backoff(timeouts.retry_min, timeouts.retry_max, failures);
    let permille = u32::try_from(hash(&(seed, failures)) % 500).expect("below 500");
    delay / 1000 * (750 + permille)
}

/// Hash of a value, equal during the life of the agent's process.
pub(super) fn hash(value: &impl std::hash::Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_limit_and_differ_between_nodes() {
        let timeouts = ClientTimeouts::default();
        for (failures, seconds) in [(1, 1), (2, 2), (5, 16), (9, 256), (10, 300), (u32::MAX, 300)] {
            let mean = Duration::from_secs(seconds);
            for seed in 0..100 {
                let delay = jittered_delay(failures, seed, &timeouts);
                assert!(delay >= mean * 3 / 4 && delay <= mean * 5 / 4, "{delay:?}, {mean:?}");
            }
        }
        let delays: std::collections::BTreeSet<_> =
            (0..100).map(|seed| jittered_delay(10, seed, &timeouts)).collect();
        assert!(delays.len() > 50, "{delays:?}");
    }
}
