//! Limits of a stage, with their defaults.

use std::{sync::Arc, time::Duration};

/// Limits of a stage or a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Number of concurrent batches: usually one per device.
    pub workers: usize,
    /// Maximum number of items per call of the work function.
    pub batch: usize,
    /// Maximum wait for a batch to fill, from the arrival of its first item.
    pub batch_wait: Duration,
    /// Capacity of the queue. Default: twice `workers` × `batch`, at least four.
    pub queue: Option<usize>,
    /// Maximum number of items in flight to one replica of a next stage, that is, without a receipt `Taken`.
    pub window: usize,
    /// Maximum payload in bytes. Between two stages the smaller limit applies.
    pub max_payload: usize,
    /// Timeout of one call of the work function.
    pub work_timeout: Duration,
    /// Timeout of the drain on shutdown.
    pub drain_timeout: Duration,
    /// Timeout of a join for the missing parts of an item.
    pub join_timeout: Duration,
    /// Maximum number of items with missing parts at a join.
    pub join_capacity: usize,
    /// Maximum interval between two resolutions of a next stage's name.
    pub resolve_interval: Duration,
}

/// Names of a process in a pipeline: its stage and its replica.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) stage: Arc<str>,
    pub(crate) replica: Arc<str>,
}

/// Maximum payload bytes in flight to one replica. It limits the window for large payloads.
pub(crate) const MAX_UNACKNOWLEDGED_BYTES: usize = 64 * 1024 * 1024;

// === impl Settings ===

impl Default for Settings {
    fn default() -> Self {
        Self {
            workers: 1,
            batch: 1,
            batch_wait: Duration::from_millis(2),
            queue: None,
            // Sustains 1,000 items per second at a round trip of 8 ms.
            window: 8,
            // A 4K frame has 24 MB in raw RGB, but less than 1 MB encoded.
            max_payload: 16 * 1024 * 1024,
            work_timeout: Duration::from_secs(60),
            // The default `terminationGracePeriodSeconds` of a pod.
            drain_timeout: Duration::from_secs(30),
            join_timeout: Duration::from_secs(10),
            join_capacity: 1024,
            resolve_interval: Duration::from_secs(10),
        }
    }
}

impl Settings {
    /// Effective capacity of the queue.
    pub(crate) fn queue_capacity(&self) -> usize {
        self.queue.unwrap_or_else(|| (2 * self.batch * self.workers).max(4)).max(1)
    }

    /// Name of the first limit that is zero and so would block all items.
    pub(crate) fn zero_limit(&self) -> Option<&'static str> {
        let limits = [("workers", self.workers), ("batch", self.batch), ("window", self.window)];
        limits.into_iter().find(|(_, value)| *value == 0).map(|(name, _)| name)
    }
}
