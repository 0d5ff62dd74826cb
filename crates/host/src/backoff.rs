//! Capped exponential back-off.

use std::time::Duration;

/// Pause after this many consecutive failures: `first`, doubled for each failure after the first, at most `max`.
pub fn backoff(first: Duration, max: Duration, failures: u32) -> Duration {
    let factor = 1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
    first.saturating_mul(factor).min(max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_doubles_the_pause_up_to_the_maximum() {
        let pause = |failures| backoff(Duration::from_secs(1), Duration::from_secs(5), failures);
        assert_eq!(
            [1, 2, 3, 4, u32::MAX].map(|failures| pause(failures).as_secs()),
            [1, 2, 4, 5, 5]
        );
    }
}
