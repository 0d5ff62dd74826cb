//! The network port of a simulated board: each direction carries one chunk after the other.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use windlass_pipeline::{fleet::NodeLink, prediction::FRAMING};

/// Both directions of a board's port.
#[derive(Debug)]
pub(super) struct Port {
    link: NodeLink,
    sending: Direction,
    receiving: Direction,
}

/// The time from which a direction is idle. Links of several threads share it, for a few instructions at a time.
#[derive(Debug)]
struct Direction(Mutex<Instant>);

// === impl Port ===

impl Port {
    pub(super) fn new(link: NodeLink) -> Self {
        let direction = || Direction(Mutex::new(Instant::now()));
        Self { link, sending: direction(), receiving: direction() }
    }

    /// Sends so many bytes to another board, and returns the time at which all of them are there.
    pub(super) fn send(&self, to: &Self, bytes: usize) -> Instant {
        let time = |port: &Self| {
            let bits = 8.0 * FRAMING * f64::from(u32::try_from(bytes).unwrap_or(u32::MAX));
            Duration::from_secs_f64(bits / port.link.rate.0)
        };
        let sent = self.sending.take(Instant::now(), time(self));
        // A switch passes frames on while others of the chunk still come.
        let received = to.receiving.take(sent.begins, time(to)).ends.max(sent.ends);
        received + Duration::from_secs_f64(self.link.delay.0 + to.link.delay.0)
    }
}

struct Transmission {
    begins: Instant,
    ends: Instant,
}

// === impl Direction ===

impl Direction {
    fn take(&self, from: Instant, time: Duration) -> Transmission {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let begins = from.max(*idle);
        *idle = begins + time;
        Transmission { begins, ends: *idle }
    }
}
