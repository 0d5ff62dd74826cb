//! Network port of a simulated board. Each direction transmits one chunk at a time.

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

/// Times of a chunk between two boards.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transit {
    /// Time at which the receiving port begins the chunk.
    pub(super) begins: Instant,
    /// Time at which the whole chunk has arrived.
    pub(super) arrives: Instant,
}

/// Time from which a direction is idle. Threads of several links share it, and hold the lock for a few instructions.
#[derive(Debug)]
struct Direction(Mutex<Instant>);

/// Typical duration of a chunk on the slower port.
const CHUNK_TIME: Duration = Duration::from_millis(1);
/// Bytes of TCP payload in a full Ethernet frame.
const PACKET: usize = 1448;
/// Maximum number of packets in a chunk. At this size, a link of 200 MB/s needs few wake-ups.
const MAX_PACKETS: usize = 11;

// === impl Port ===

impl Port {
    pub(super) fn new(link: NodeLink) -> Self {
        let direction = || Direction(Mutex::new(Instant::now()));
        Self { link, sending: direction(), receiving: direction() }
    }

    /// Reserves both ports for a chunk of `bytes` to another board.
    pub(super) fn reserve_transfer(&self, receiver: &Self, bytes: usize) -> Transit {
        let sending = self.sending.reserve(Instant::now(), self.time_of(bytes));
        // A switch forwards the first frames of a chunk while later ones still arrive.
        let receiving = receiver.receiving.reserve(sending.begins, receiver.time_of(bytes));
        Transit {
            begins: receiving.begins,
            arrives: receiving.ends.max(sending.ends) + self.delay_to(receiver),
        }
    }

    /// Size in bytes of a chunk to another board: about a millisecond on the slower port, and at most `MAX_PACKETS`.
    /// Flows take turns by chunks, as they would by packets.
    pub(super) fn chunk_size_to(&self, receiver: &Self) -> usize {
        let packets = quotient(self.time_of(PACKET).max(receiver.time_of(PACKET)), CHUNK_TIME);
        PACKET * packets.clamp(1, MAX_PACKETS)
    }

    /// Number of chunks that are in transit to another board at the same time.
    pub(super) fn in_transit_to(&self, receiver: &Self) -> usize {
        quotient(CHUNK_TIME, self.delay_to(receiver))
    }

    fn time_of(&self, bytes: usize) -> Duration {
        let bits = 8.0 * FRAMING * f64::from(u32::try_from(bytes).unwrap_or(u32::MAX));
        Duration::from_secs_f64(bits / self.link.rate.0)
    }

    fn delay_to(&self, receiver: &Self) -> Duration {
        Duration::from_secs_f64(self.link.delay.0 + receiver.link.delay.0)
    }
}

/// Number of times that `part` fits into `whole`.
fn quotient(part: Duration, whole: Duration) -> usize {
    usize::try_from(whole.as_nanos() / part.as_nanos().max(1)).unwrap_or(usize::MAX)
}

struct Transmission {
    begins: Instant,
    ends: Instant,
}

// === impl Direction ===

impl Direction {
    /// Reserves the direction for `time`, from when it is idle and at the earliest at `from`.
    fn reserve(&self, from: Instant, time: Duration) -> Transmission {
        let mut idle_from = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let begins = from.max(*idle_from);
        *idle_from = begins + time;
        Transmission { begins, ends: *idle_from }
    }
}
