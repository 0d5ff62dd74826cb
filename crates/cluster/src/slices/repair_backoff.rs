//! Back-off of repairs. A repair restores slices that another writer changed.
//!
//! Two writers could undo each other's changes forever. Therefore the pause grows with the number of recent repairs.
//! This number falls by one each `ClientTimeouts::retry_min` (a second), so occasional changes are repaired without a
//! pause.

use std::time::Duration;

use tokio::time::Instant;
use windlass_host::backoff::backoff;

use crate::ClientTimeouts;

/// Time of the next repair.
pub(super) struct RepairBackoff {
    timeouts: ClientTimeouts,
    /// Number of recent repairs.
    recent_repairs: u32,
    /// Time of the last repair.
    last_repair: Instant,
    /// Time of a postponed repair.
    due: Option<Instant>,
}

/// Repairs without a pause: slices may be deleted one by one.
const IMMEDIATE_REPAIRS: u32 = 4;

/// Maximum of `recent_repairs`. A larger number would not lengthen the pause, but the pause would last longer after the
/// last change.
const MAX_RECENT: u32 = IMMEDIATE_REPAIRS + 16;

// === impl RepairBackoff ===

impl RepairBackoff {
    pub(super) fn new(timeouts: ClientTimeouts) -> Self {
        Self { timeouts, recent_repairs: 0, last_repair: Instant::now(), due: None }
    }

    /// Permits a repair now, or returns the time of the next repair.
    pub(super) fn try_repair(&mut self) -> Result<(), Instant> {
        let now = Instant::now();
        let due = self.due.unwrap_or_else(|| now + self.next_delay());
        self.due = (now < due).then_some(due);
        self.due.map_or(Ok(()), Err)
    }

    /// Counts a repair, and returns the pause before it.
    pub(super) fn next_delay(&mut self) -> Duration {
        let ClientTimeouts { retry_min, retry_max, .. } = self.timeouts;
        let periods = self.last_repair.elapsed().as_millis() / retry_min.as_millis().max(1);
        let expired = u32::try_from(periods).unwrap_or(u32::MAX);
        self.recent_repairs = (self.recent_repairs.saturating_sub(expired) + 1).min(MAX_RECENT);
        let delay = match self.recent_repairs.saturating_sub(IMMEDIATE_REPAIRS) {
            0 => Duration::ZERO,
            count_beyond => backoff(retry_min, retry_max, count_beyond),
        };
        self.last_repair = Instant::now() + delay;
        delay
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    /// Seconds before each of this many repairs, if every repair lasts for the given time.
    async fn delays(
        repairs: &mut RepairBackoff,
        repair_duration: Duration,
        count: usize,
    ) -> Vec<u64> {
        let mut delays = Vec::new();
        for _ in 0..count {
            advance(repair_duration).await;
            let start = Instant::now();
            while let Err(due) = repairs.try_repair() {
                advance(due - Instant::now()).await;
            }
            delays.push(start.elapsed().as_secs());
        }
        delays
    }

    #[tokio::test(start_paused = true)]
    async fn repairs_are_immediate_unless_another_writer_repeats_its_change_at_once() {
        let mut repairs = RepairBackoff::new(ClientTimeouts::default());
        let (at_once, a_while) = (Duration::from_millis(100), Duration::from_millis(1500));
        assert_eq!(delays(&mut repairs, a_while, 50).await, [0; 50]);
        let measured = delays(&mut repairs, at_once, 16).await;
        assert_eq!(measured[..8], [0, 0, 0, 1, 2, 4, 8, 16]);
        assert_eq!(measured[15], ClientTimeouts::default().retry_max.as_secs());
        advance(Duration::from_secs(20)).await;
        assert_eq!(delays(&mut repairs, at_once, 5).await, [0, 0, 0, 0, 1]);
    }
}
