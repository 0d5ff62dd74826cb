//! How soon what others changed is put back: at once, and then ever more rarely, since two who undo each
//! other's work would never end.

use std::time::Duration;

use tokio::time::Instant;

use crate::cluster::Limits;

/// When the next repair may be.
pub(super) struct Patience {
    limits: Limits,
    repairs: u32,
    next: Instant,
}

// === impl Patience ===

impl Patience {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, repairs: 0, next: Instant::now() }
    }

    /// Repairs now, or says when it may be tried again.
    pub(super) fn try_now(&mut self) -> Result<(), Instant> {
        let now = Instant::now();
        if now < self.next {
            return Err(self.next);
        }
        self.used(now);
        Ok(())
    }

    /// How long to leave things alone.
    pub(super) fn pause(&mut self) -> Duration {
        let now = Instant::now();
        self.used(now);
        self.next.saturating_duration_since(now)
    }

    fn used(&mut self, now: Instant) {
        let was_calm = now.saturating_duration_since(self.next) > self.limits.retry_most;
        self.repairs = if was_calm { 0 } else { self.repairs };
        let pause = self.limits.retry_first.saturating_mul(1 << self.repairs.min(16));
        self.next = now + pause.min(self.limits.retry_most);
        self.repairs = self.repairs.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_first_repair_is_at_once_and_each_further_one_later_until_it_was_calm() {
        let mut patience = Patience::new(Limits::default());
        for seconds in [1, 2, 4, 8] {
            assert_eq!(patience.try_now(), Ok(()));
            let next = Instant::now() + Duration::from_secs(seconds);
            assert_eq!(patience.try_now(), Err(next));
            advance(Duration::from_secs(seconds)).await;
        }
        advance(Limits::default().retry_most * 2).await;
        assert_eq!(patience.pause(), Limits::default().retry_first);
    }
}
