//! Estimate of an item's time on a link, without synchronised clocks.
//!
//! The clocks of two nodes differ by an unknown offset, so `received - sent` alone is meaningless. Within one stream
//! the offset is constant: the smallest difference belongs to a message that met no queue, and took about half of the
//! smallest round trip. Hence
//!
//! ```text
//! link = (received - sent) - smallest(received - sent) + half of the smallest round trip
//! ```
//!
//! The sender measures the round trip with pings, when a stream opens and every few seconds, and sends it with each
//! item. Two clocks drift apart by up to 50 ppm. So the smallest difference is that of the last 10 to 20 seconds, in
//! which the drift is at most a millisecond.
//!
//! The estimate assumes that both directions of a link are equally fast, and a ping as fast as an empty item. On a link
//! that is never idle, the pings queue behind items, and the estimate is too small by that queue.

use tokio::time::{Duration, Instant};

use crate::visit::nanos;

/// Smallest clock differences of one stream.
#[derive(Debug)]
pub(crate) struct LinkTime {
    /// Zero of the receiver's clock.
    started: Instant,
    /// Smallest difference of the current span in nanoseconds.
    current: Option<i64>,
    /// Smallest difference of the previous span.
    previous: Option<i64>,
    /// End of the current span.
    span_end: Instant,
}

/// Length of a span. A difference counts in its own span and in the next one.
const SPAN: Duration = Duration::from_secs(10);

impl LinkTime {
    pub(crate) fn starting_at(now: Instant) -> Self {
        Self { started: now, current: None, previous: None, span_end: now + SPAN }
    }

    /// Records a message, and returns its delay beyond the fastest message of the current and previous span.
    pub(crate) fn observe(&mut self, sent_ns: u64, received: Instant) -> Duration {
        if received >= self.span_end {
            let is_recent = received < self.span_end + SPAN;
            self.previous = self.current.take().filter(|_| is_recent);
            self.span_end = received + SPAN;
        }
        let received_ns = nanos(received.duration_since(self.started));
        let difference = received_ns.wrapping_sub(sent_ns).cast_signed();
        self.current = Some(self.current.map_or(difference, |smallest| smallest.min(difference)));
        let smallest = self.current.into_iter().chain(self.previous).min().unwrap_or(difference);
        Duration::from_nanos(difference.wrapping_sub(smallest).max(0).cast_unsigned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Delay beyond the fastest message. The message was sent at `sent_at`, by a clock that is ahead by `offset`, and
    /// took `link_time` on the link.
    fn excess(
        link: &mut LinkTime,
        zero: Instant,
        offset: u64,
        sent_at: Duration,
        link_time: Duration,
    ) -> Duration {
        link.observe(offset.wrapping_add(nanos(sent_at)), zero + sent_at + link_time)
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
    fn the_smallest_difference_expires_since_clocks_drift() {
        let zero = Instant::now();
        let mut link = LinkTime::starting_at(zero);
        excess(&mut link, zero, 0, Duration::ZERO, MS);
        assert_eq!(excess(&mut link, zero, 0, SPAN, MS * 2), MS, "the previous span counts");
        assert_eq!(excess(&mut link, zero, 0, SPAN * 2 + MS * 3, MS * 2), Duration::ZERO);
    }
}
