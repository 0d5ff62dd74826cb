//! The time that an item spends on a link, without common clocks.
//!
//! Clocks of two nodes differ by an unknown amount, so `received - sent` alone means nothing. Over one stream the
//! amount stays: the smallest difference belongs to a message that met no queue, and took about half of the smallest
//! round trip. So
//!
//! ```text
//! link = (received - sent) - smallest(received - sent) + half of the smallest round trip
//! ```
//!
//! The sender measures the round trip, by pings when a stream opens and every few seconds, and tells it with each item.
//! Two clocks drift apart by up to 50 millionths, which would add up. So the smallest difference is that of the last 10
//! to 20 seconds, in which the error is at most a millisecond.
//!
//! The estimate takes both directions of a link for equally fast, and a ping for as fast as an empty item. On a link
//! that is never idle the pings queue behind items, and the estimate is too small by that queue.

use tokio::time::{Duration, Instant};

use crate::visit::nanos;

/// Differences of one stream's clocks.
#[derive(Debug)]
pub(crate) struct LinkTime {
    /// Zero of the receiver's clock.
    started: Instant,
    /// Smallest difference of the span that runs, and of the one before.
    current: Option<i64>,
    previous: Option<i64>,
    /// End of the span that runs.
    turns: Instant,
}

/// Span in which a difference is remembered, once as the current one and once as the previous one.
const SPAN: Duration = Duration::from_secs(10);

impl LinkTime {
    pub(crate) fn starting_at(now: Instant) -> Self {
        Self { started: now, current: None, previous: None, turns: now + SPAN }
    }

    /// Notes a message, and returns its delay beyond the fastest one of late.
    pub(crate) fn observe(&mut self, sent_ns: u64, received: Instant) -> Duration {
        if received >= self.turns {
            let is_recent = received < self.turns + SPAN;
            self.previous = self.current.take().filter(|_| is_recent);
            self.turns = received + SPAN;
        }
        let received_ns = nanos(received.duration_since(self.started));
        let difference = received_ns.wrapping_sub(sent_ns).cast_signed();
        self.current = Some(self.current.map_or(difference, |least| least.min(difference)));
        let least = self.current.into_iter().chain(self.previous).min().unwrap_or(difference);
        Duration::from_nanos(difference.wrapping_sub(least).max(0).cast_unsigned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Excess of a message that a sender, whose clock is ahead by `offset`, sent at `at` and that took `took`.
    fn excess(
        link: &mut LinkTime,
        zero: Instant,
        offset: u64,
        at: Duration,
        took: Duration,
    ) -> Duration {
        link.observe(offset.wrapping_add(nanos(at)), zero + at + took)
    }

    #[test]
    fn the_difference_of_the_clocks_does_not_matter() {
        for offset in [0, 7_000_000_000, u64::MAX - 5] {
            let zero = Instant::now();
            let mut link = LinkTime::starting_at(zero);
            assert_eq!(excess(&mut link, zero, offset, MS, MS), Duration::ZERO);
            assert_eq!(excess(&mut link, zero, offset, MS * 5, MS * 4), MS * 3);
            assert_eq!(excess(&mut link, zero, offset, MS * 20, MS), Duration::ZERO);
        }
    }

    #[test]
    fn an_old_smallest_difference_is_forgotten_since_clocks_drift() {
        let zero = Instant::now();
        let mut link = LinkTime::starting_at(zero);
        excess(&mut link, zero, 0, Duration::ZERO, MS);
        assert_eq!(excess(&mut link, zero, 0, SPAN, MS * 2), MS, "the previous span counts");
        assert_eq!(excess(&mut link, zero, 0, SPAN * 2 + MS * 3, MS * 2), Duration::ZERO);
    }
}
