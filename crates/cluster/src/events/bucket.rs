//! Rate limit of events: a token bucket.

use std::time::Duration;

use tokio::time::Instant;

/// Capacity: enough for all GPUs of the largest nodes to fail and recover at once.
const CAPACITY: u32 = 32;

/// Interval of new tokens. It bounds the sustained load of one node on the API server.
const REFILL_INTERVAL: Duration = Duration::from_secs(10);

pub(super) struct TokenBucket {
    tokens: u32,
    /// Time of the last token.
    last_refill: Instant,
}

// === impl TokenBucket ===

impl TokenBucket {
    pub(super) fn full(now: Instant) -> Self {
        Self { tokens: CAPACITY, last_refill: now }
    }

    /// Takes a token, or returns the time of the next one.
    pub(super) fn take(&mut self, now: Instant) -> Result<(), Instant> {
        self.refill(now);
        self.tokens = self.tokens.checked_sub(1).ok_or(self.last_refill + REFILL_INTERVAL)?;
        Ok(())
    }

    fn refill(&mut self, now: Instant) {
        while self.tokens < CAPACITY && self.last_refill + REFILL_INTERVAL <= now {
            self.tokens += 1;
            self.last_refill += REFILL_INTERVAL;
        }
        if self.tokens == CAPACITY {
            self.last_refill = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_once_and_then_one_event_per_interval() {
        let start = Instant::now();
        let mut bucket = TokenBucket::full(start);
        assert!((0..CAPACITY).all(|_| bucket.take(start).is_ok()));
        assert_eq!(bucket.take(start), Err(start + REFILL_INTERVAL));
        assert_eq!(bucket.take(start + REFILL_INTERVAL / 2), Err(start + REFILL_INTERVAL));
        assert_eq!(bucket.take(start + REFILL_INTERVAL), Ok(()));
        assert_eq!(bucket.take(start + REFILL_INTERVAL), Err(start + REFILL_INTERVAL * 2));
        let later = start + REFILL_INTERVAL * 1000;
        assert!((0..CAPACITY).all(|_| bucket.take(later).is_ok()));
        assert_eq!(bucket.take(later), Err(later + REFILL_INTERVAL));
    }
}
