//! What one part has tried: how long it waits after a failure, and what of it is said.

use std::{
    hash::{DefaultHasher, Hasher as _},
    time::Duration,
};

use windlass_host::causes;

use super::{Client, ClusterError, Limits};

/// What one part has tried. A failure that goes on for the same reason is said once.
pub(super) struct Attempts {
    part: &'static str,
    limits: Limits,
    /// Differs from node to node.
    seed: u64,
    failures: u32,
    said: Option<String>,
}

// === impl Attempts ===

impl Attempts {
    pub(super) fn new(part: &'static str, client: &Client) -> Self {
        let seed = hash(&(client.node(), part));
        Self { part, limits: client.limits(), seed, failures: 0, said: None }
    }

    /// The API server answered as hoped.
    pub(super) fn worked(&mut self) {
        self.failures = 0;
        if self.said.take().is_some() {
            tracing::info!(part = self.part, "the API server answers again");
        }
    }

    /// It did not. Gives the time to wait before the next attempt.
    pub(super) fn failed(&mut self, error: &ClusterError) -> Duration {
        let error = causes(error);
        if self.said.as_ref() != Some(&error) {
            tracing::warn!(part = self.part, error, "trying again with back-off");
            self.said = Some(error);
        }
        self.failures = self.failures.saturating_add(1);
        self.pause(self.failures)
    }

    /// How long to wait after so many failures in a row, of something that is counted elsewhere.
    pub(super) fn pause(&self, failures: u32) -> Duration {
        pause(failures, self.seed, &self.limits)
    }
}

/// Doubles with each failure in a row, up to a limit, and is spread by a quarter to each side: the
/// nodes of a cluster lose their API server at the same moment, and must not come back at the same.
fn pause(failures: u32, seed: u64, limits: &Limits) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    let pause = limits.retry_first.saturating_mul(1 << doublings).min(limits.retry_most);
    let permille = u32::try_from(hash(&(seed, failures)) % 500).expect("below 500");
    pause / 1000 * (750 + permille)
}

/// Stands for a value, the same one for as long as the agent lives.
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
        let limits = Limits::default();
        for (failures, seconds) in [(1, 1), (2, 2), (5, 16), (9, 256), (10, 300), (u32::MAX, 300)] {
            let middle = Duration::from_secs(seconds);
            for seed in 0..100 {
                let pause = pause(failures, seed, &limits);
                assert!(
                    pause >= middle * 3 / 4 && pause <= middle * 5 / 4,
                    "{pause:?}, {middle:?}"
                );
            }
        }
        let spread: std::collections::BTreeSet<_> =
            (0..100).map(|seed| pause(10, seed, &limits)).collect();
        assert!(spread.len() > 50, "{spread:?}");
    }
}
