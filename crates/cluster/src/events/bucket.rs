//! Rate limit of events: a token bucket.

use std::time::Duration;

use tokio::time::Instant;

/// Capacity: enough for all GPUs of the largest nodes to fail and recover at once.
const MAX: u32 = 32;

/// Interval of new tokens. It bounds one node's lasting load on the API server.
const EVERY: Duration = Duration::from_secs(10);

pub(super) struct Bucket {
    tokens: u32,
    /// Time of the last token.
    filled: Instant,
}

// === impl Bucket ===

impl Bucket {
    pub(super) fn full(now: Instant) -> Self {
        Self { tokens: MAX, filled: now }
    }

    /// Takes a token, or returns the time of the next one.
    pub(super) fn take(&mut self, now: Instant) -> Result<(), Instant> {
        self.fill(now);
        self.tokens = self.tokens.checked_sub(1).ok_or(self.filled + EVERY)?;
        Ok(())
    }

    fn fill(&mut self, now: Instant) {
        while self.tokens < MAX && self.filled + EVERY <= now {
            self.tokens += 1;
            self.filled += EVERY;
        }
        if self.tokens == MAX {
            self.filled = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_once_and_then_one_event_per_interval() {
        let start = Instant::now();
        let mut bucket = Bucket::full(start);
        assert!((0..MAX).all(|_| bucket.take(start).is_ok()));
        assert_eq!(bucket.take(start), Err(start + EVERY));
        assert_eq!(bucket.take(start + EVERY / 2), Err(start + EVERY));
        assert_eq!(bucket.take(start + EVERY), Ok(()));
        assert_eq!(bucket.take(start + EVERY), Err(start + EVERY * 2));
        let later = start + EVERY * 1000;
        assert!((0..MAX).all(|_| bucket.take(later).is_ok()));
        assert_eq!(bucket.take(later), Err(later + EVERY));
    }
}
