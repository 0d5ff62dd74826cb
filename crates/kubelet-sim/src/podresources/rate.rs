//! Token bucket: rate limit of calls per second, with a burst.

use tokio::time::Instant;

/// A token bucket, refilled as time passes.
#[derive(Clone, Copy, Debug)]
pub(super) struct TokenBucket {
    per_second: f64,
    burst: f64,
    tokens: f64,
    filled_at: Instant,
}

// === impl TokenBucket ===

impl TokenBucket {
    /// A full bucket.
    pub(super) fn new(per_second: u32, burst: u32, now: Instant) -> Self {
        let (per_second, burst) = (f64::from(per_second), f64::from(burst));
        Self { per_second, burst, tokens: burst, filled_at: now }
    }

    /// Takes a token; false if the bucket is empty.
    pub(super) fn try_take(&mut self, now: Instant) -> bool {
        let elapsed = now.saturating_duration_since(self.filled_at).as_secs_f64();
        self.tokens = self.burst.min(self.tokens + elapsed * self.per_second);
        self.filled_at = now;
        let has_token = self.tokens >= 1.0;
        if has_token {
            self.tokens -= 1.0;
        }
        has_token
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn ten_calls_pass_at_once_then_one_per_ten_milliseconds() {
        let start = Instant::now();
        let mut bucket = TokenBucket::new(100, 10, start);
        assert_eq!((0..200).filter(|_| bucket.try_take(start)).count(), 10);
        assert!(bucket.try_take(start + Duration::from_millis(10)));
        assert!(!bucket.try_take(start + Duration::from_millis(15)));
        assert!(bucket.try_take(start + Duration::from_millis(20)));
    }
}
