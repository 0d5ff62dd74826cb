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

/// Bytes on their way between two boards.
#[derive(Clone, Copy, Debug)]
pub(super) struct Passage {
    /// The time at which the slower port takes up the first of them.
    pub(super) begins: Instant,
    /// The time at which all of them are there.
    pub(super) arrives: Instant,
}

/// The time from which a direction is idle. Links of several threads share it, for a few instructions at a time.
#[derive(Debug)]
struct Direction(Mutex<Instant>);

/// Time of a chunk on the port.
const TURN: Duration = Duration::from_millis(1);
/// Payload of a packet of TCP in an Ethernet frame.
const PACKET: usize = 1448;
/// Packets of a chunk on fast ports: few wake-ups are enough for 200 MB/s.
const MOST_PACKETS: usize = 11;

// === impl Port ===

impl Port {
    pub(super) fn new(link: NodeLink) -> Self {
        let direction = || Direction(Mutex::new(Instant::now()));
        Self { link, sending: direction(), receiving: direction() }
    }

    /// Sends so many bytes to another board.
    pub(super) fn send(&self, to: &Self, bytes: usize) -> Passage {
        let sent = self.sending.take(Instant::now(), self.time_of(bytes));
        // A switch passes frames on while others of the chunk still come.
        let received = to.receiving.take(sent.begins, to.time_of(bytes));
        Passage {
            begins: received.begins,
            arrives: received.ends.max(sent.ends) + self.delay_to(to),
        }
    }

    /// Bytes that a flow to another board sends at a time: about a millisecond of the slower port, so that flows take
    /// turns as their packets would.
    pub(super) fn chunk_to(&self, to: &Self) -> usize {
        let packets = turns(self.time_of(PACKET).max(to.time_of(PACKET)), TURN);
        PACKET * packets.clamp(1, MOST_PACKETS)
    }

    /// Chunks that are on their way at once to a board so far away.
    pub(super) fn underway_to(&self, to: &Self) -> usize {
        turns(TURN, self.delay_to(to))
    }

    fn time_of(&self, bytes: usize) -> Duration {
        let bits = 8.0 * FRAMING * f64::from(u32::try_from(bytes).unwrap_or(u32::MAX));
        Duration::from_secs_f64(bits / self.link.rate.0)
    }

    fn delay_to(&self, to: &Self) -> Duration {
        Duration::from_secs_f64(self.link.delay.0 + to.link.delay.0)
    }
}

/// Number of times that a part is in the whole.
fn turns(part: Duration, whole: Duration) -> usize {
    usize::try_from(whole.as_nanos() / part.as_nanos().max(1)).unwrap_or(usize::MAX)
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
