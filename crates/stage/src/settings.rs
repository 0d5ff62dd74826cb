//! Limits of a stage, with their defaults.

use std::{sync::Arc, time::Duration};

/// Limits of a stage or a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Batches that are worked on at once: devices side by side.
    pub workers: usize,
    /// Most items of one call of the work.
    pub batch: usize,
    /// Longest wait for a batch to fill, once there is one item.
    pub batch_wait: Duration,
    /// Items in the queue; none: twice those in work, and at least four.
    pub queue: Option<usize>,
    /// Items on the way to one replica of a next stage, that this replica has not taken yet.
    pub window: usize,
    /// Largest payload, in bytes. Neighbours of different limits keep to the smaller one.
    pub max_payload: usize,
    /// Longest time of one call of the work.
    pub work_timeout: Duration,
    /// Longest time to finish on shutdown.
    pub drain_timeout: Duration,
    /// Longest wait of a join for the other parts of an item.
    pub join_timeout: Duration,
    /// Items of which a join has some parts.
    pub join_capacity: usize,
    /// Pause between two looks at the names of the next stages.
    pub resolve_every: Duration,
}

/// Name of a process in a pipeline.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) stage: Arc<str>,
    pub(crate) replica: Arc<str>,
}

/// Payload bytes on the way to one replica: the window is smaller where payloads are large.
pub(crate) const UNTAKEN_BYTES: usize = 64 * 1024 * 1024;

// === impl Settings ===

impl Default for Settings {
    fn default() -> Self {
        Self {
            workers: 1,
            batch: 1,
            batch_wait: Duration::from_millis(2),
            queue: None,
            // Covers a round trip of 8 ms at 1,000 items per second.
            window: 8,
            // A frame of 4K in raw RGB has 24 MB; encoded, less than one.
            max_payload: 16 * 1024 * 1024,
            work_timeout: Duration::from_secs(60),
            // That of a pod by default.
            drain_timeout: Duration::from_secs(30),
            join_timeout: Duration::from_secs(10),
            join_capacity: 1024,
            resolve_every: Duration::from_secs(10),
        }
    }
}

impl Settings {
    /// Items in the queue.
    pub(crate) fn room(&self) -> usize {
        self.queue.unwrap_or_else(|| (2 * self.batch * self.workers).max(4)).max(1)
    }

    /// The first limit that is zero and lets no item pass.
    pub(crate) fn zero(&self) -> Option<&'static str> {
        let limits = [("workers", self.workers), ("batch", self.batch), ("window", self.window)];
        limits.into_iter().find(|(_, value)| *value == 0).map(|(name, _)| name)
    }
}
