//! Back-off of repairs: changes by others are undone at once, unless they return at once.
//!
//! Two writers that undo each other's work would never end. A change that returns as soon as it is undone
//! is a fight, and each round is answered later. Occasional deletions are none, however many: each second
//! without one takes a round away.

use std::time::Duration;

use tokio::time::Instant;
use windlass_host::backoff::backoff;

use crate::Limits;

/// Time of the next repair.
pub(super) struct RepairBackoff {
    limits: Limits,
    /// Rounds of the present fight.
    rounds: u32,
    /// End of the last round.
    since: Instant,
    /// Time of a postponed repair.
    due: Option<Instant>,
}

/// Rounds that are answered at once: slices may be deleted one by one.
const AT_ONCE: u32 = 4;

/// Most rounds that count: more would not lengthen the pause, but delay the end of the fight.
const MAX_ROUNDS: u32 = AT_ONCE + 16;

// === impl RepairBackoff ===

impl RepairBackoff {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, rounds: 0, since: Instant::now(), due: None }
    }

    /// Permits a repair now, or returns the time of the next one.
    pub(super) fn try_now(&mut self) -> Result<(), Instant> {
        let now = Instant::now();
        let due = self.due.unwrap_or_else(|| now + self.pause());
        self.due = (now < due).then_some(due);
        self.due.map_or(Ok(()), Err)
    }

    /// Pause before changes that did not last are made again.
    pub(super) fn pause(&mut self) -> Duration {
        let Limits { retry_first, retry_most, .. } = self.limits;
        let whiles = self.since.elapsed().as_millis() / retry_first.as_millis().max(1);
        let over = u32::try_from(whiles).unwrap_or(u32::MAX);
        self.rounds = (self.rounds.saturating_sub(over) + 1).min(MAX_ROUNDS);
        let pause = match self.rounds.saturating_sub(AT_ONCE) {
            0 => Duration::ZERO,
            late => backoff(retry_first, retry_most, late),
        };
        self.since = Instant::now() + pause;
        pause
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    /// Seconds until each of this many repairs, if every repair is undone after the given time.
    async fn waits(repairs: &mut RepairBackoff, stands: Duration, times: usize) -> Vec<u64> {
        let mut waits = Vec::new();
        for _ in 0..times {
            advance(stands).await;
            let begun = Instant::now();
            while let Err(due) = repairs.try_now() {
                advance(due - Instant::now()).await;
            }
            waits.push(begun.elapsed().as_secs());
        }
        waits
    }

    #[tokio::test(start_paused = true)]
    async fn a_wipe_is_answered_at_once_each_time_and_a_fight_ever_later_until_something_stands() {
        let mut repairs = RepairBackoff::new(Limits::default());
        let (at_once, a_while) = (Duration::from_millis(100), Duration::from_millis(1500));
        assert_eq!(waits(&mut repairs, a_while, 50).await, [0; 50]);
        let fight = waits(&mut repairs, at_once, 16).await;
        assert_eq!(fight[..8], [0, 0, 0, 1, 2, 4, 8, 16]);
        assert_eq!(fight[15], Limits::default().retry_most.as_secs());
        advance(Duration::from_secs(20)).await;
        assert_eq!(waits(&mut repairs, at_once, 5).await, [0, 0, 0, 0, 1]);
    }
}
