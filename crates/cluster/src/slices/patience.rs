//! How soon what others changed is put back: at once, unless it never lasts.
//!
//! Two who undo each other's work would never end. What is undone again and again as soon as it is written is
//! a fight, and each of its rounds is answered later. A wipe now and then is none, however often it comes:
//! every second without one takes a round away.

use std::time::Duration;

use tokio::time::Instant;

use crate::Limits;

/// When the next repair may be.
pub(super) struct Patience {
    limits: Limits,
    /// Rounds of a fight.
    rounds: u32,
    /// When the last round was over.
    since: Instant,
    /// When the repair may be that is wanted.
    due: Option<Instant>,
}

/// So many rounds are answered at once: who deletes slices one by one does not fight.
const AT_ONCE: u32 = 4;

/// Rounds that count: more would make a pause no longer, and the end of the fight late.
const MOST_ROUNDS: u32 = AT_ONCE + 16;

// === impl Patience ===

impl Patience {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, rounds: 0, since: Instant::now(), due: None }
    }

    /// Repairs now, or says when it may be tried again.
    pub(super) fn try_now(&mut self) -> Result<(), Instant> {
        let now = Instant::now();
        let due = self.due.unwrap_or_else(|| now + self.pause());
        self.due = (now < due).then_some(due);
        self.due.map_or(Ok(()), Err)
    }

    /// How long to leave things alone that did not last.
    pub(super) fn pause(&mut self) -> Duration {
        let Limits { retry_first, retry_most, .. } = self.limits;
        let whiles = self.since.elapsed().as_millis() / retry_first.as_millis().max(1);
        let over = u32::try_from(whiles).unwrap_or(u32::MAX);
        self.rounds = (self.rounds.saturating_sub(over) + 1).min(MOST_ROUNDS);
        let pause = match self.rounds.checked_sub(AT_ONCE + 1) {
            None => Duration::ZERO,
            Some(late) => retry_first.saturating_mul(1 << late).min(retry_most),
        };
        self.since = Instant::now() + pause;
        pause
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    /// The seconds until each of so many repairs, when what is written is undone after this time.
    async fn waits(patience: &mut Patience, stands: Duration, times: usize) -> Vec<u64> {
        let mut waits = Vec::new();
        for _ in 0..times {
            advance(stands).await;
            let begun = Instant::now();
            while let Err(due) = patience.try_now() {
                advance(due - Instant::now()).await;
            }
            waits.push(begun.elapsed().as_secs());
        }
        waits
    }

    #[tokio::test(start_paused = true)]
    async fn a_wipe_is_answered_at_once_each_time_and_a_fight_ever_later_until_something_stands() {
        let mut patience = Patience::new(Limits::default());
        let (at_once, a_while) = (Duration::from_millis(100), Duration::from_millis(1500));
        assert_eq!(waits(&mut patience, a_while, 50).await, [0; 50]);
        let fight = waits(&mut patience, at_once, 16).await;
        assert_eq!(fight[..8], [0, 0, 0, 1, 2, 4, 8, 16]);
        assert_eq!(fight[15], Limits::default().retry_most.as_secs());
        advance(Duration::from_secs(20)).await;
        assert_eq!(waits(&mut patience, at_once, 5).await, [0, 0, 0, 0, 1]);
    }
}
