//! How many events may be written: a bucket of tokens that fills slowly.

use std::time::Duration;

use tokio::time::Instant;

/// Every GPU of the largest nodes may fail and recover at once.
const MOST: u32 = 32;

/// What one node may add to the API server's load for hours on end.
const EVERY: Duration = Duration::from_secs(10);

pub(super) struct Bucket {
    tokens: u32,
    /// When the last token came in.
    filled: Instant,
}

// === impl Bucket ===

impl Bucket {
    pub(super) fn full(now: Instant) -> Self {
        Self { tokens: MOST, filled: now }
    }

    /// Takes a token; says when there will be one if there is none.
    pub(super) fn take(&mut self, now: Instant) -> Result<(), Instant> {
        self.fill(now);
        self.tokens = self.tokens.checked_sub(1).ok_or(self.filled + EVERY)?;
        Ok(())
    }

    fn fill(&mut self, now: Instant) {
        while self.tokens < MOST && self.filled + EVERY <= now {
            self.tokens += 1;
            self.filled += EVERY;
        }
        if self.tokens == MOST {
            self.filled = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storm_is_let_through_once_and_then_drop_by_drop() {
        let start = Instant::now();
        let mut bucket = Bucket::full(start);
        assert!((0..MOST).all(|_| bucket.take(start).is_ok()));
        assert_eq!(bucket.take(start), Err(start + EVERY));
        assert_eq!(bucket.take(start + EVERY / 2), Err(start + EVERY));
        assert_eq!(bucket.take(start + EVERY), Ok(()));
        assert_eq!(bucket.take(start + EVERY), Err(start + EVERY * 2));
        let later = start + EVERY * 1000;
        assert!((0..MOST).all(|_| bucket.take(later).is_ok()));
        assert_eq!(bucket.take(later), Err(later + EVERY));
    }
}
