//! One stream to a replica: the items on it, and how far each is.
//!
//! ```text
//!  sent ──(Taken)──> taken ──(Passed)──> forgotten
//!    │                 │
//!    └──(the stream ends)──> a failure for another replica
//! ```

use std::collections::BTreeMap;

use tokio::{
    sync::mpsc,
    time::{Duration, Instant},
};

use crate::{
    dial::ping,
    item::{Body, Outgoing, Stamp},
    settings::{Settings, UNTAKEN_BYTES},
    visit::nanos,
    wire::{self, parcel::Content},
};

/// A stream that has opened.
#[derive(Debug)]
pub(super) struct Link {
    description: wire::DescribeResponse,
    /// None once nothing more goes to the replica.
    parcels: Option<mpsc::UnboundedSender<wire::Parcel>>,
    /// The time at which the replica said that it drains.
    draining_since: Option<Instant>,
    half_round_trip: Duration,
    /// Items that the replica has not passed, by their number.
    pending: BTreeMap<u64, Pending>,
    next_sequence: u64,
    /// Mean time of an item at the replica, of late; none before the first was passed.
    pace: Option<Duration>,
    last_sent: Instant,
    untaken: usize,
    untaken_bytes: usize,
}

/// An item on the stream. Its payload is gone.
#[derive(Debug)]
struct Pending {
    outgoing: Outgoing,
    sent: Instant,
    /// Items that were at the replica before.
    ahead: u32,
    /// Bytes of its payload while the replica has not taken it.
    untaken: Option<usize>,
}

/// The newest item has one part in so many of the mean time.
const NEWEST: u32 = 8;

/// An idle replica seems twice as fast after this time.
const HALVED_AFTER: Duration = Duration::from_secs(10);

// === impl Link ===

impl Link {
    pub(super) fn new(
        description: wire::DescribeResponse,
        parcels: mpsc::UnboundedSender<wire::Parcel>,
        half_round_trip: Duration,
    ) -> Self {
        Self {
            description,
            parcels: Some(parcels),
            draining_since: None,
            half_round_trip,
            pending: BTreeMap::new(),
            next_sequence: 0,
            pace: None,
            last_sent: Instant::now(),
            untaken: 0,
            untaken_bytes: 0,
        }
    }

    pub(super) fn replica(&self) -> &str {
        &self.description.replica
    }

    pub(super) fn joins(&self) -> bool {
        self.description.joins
    }

    /// True for a replica that is there to stay.
    pub(super) fn is_open(&self) -> bool {
        self.parcels.is_some() && self.draining_since.is_none()
    }

    /// The time since which the replica drains and could still be sent to.
    pub(super) fn draining_since(&self) -> Option<Instant> {
        self.draining_since.filter(|_| self.parcels.is_some())
    }

    /// The replica drains: others are used where there are any.
    pub(super) fn drains(&mut self, now: Instant) {
        self.draining_since.get_or_insert(now);
    }

    pub(super) fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    /// Items that are not passed.
    pub(super) fn count(&self) -> usize {
        self.pending.len()
    }

    /// Time until the replica would have passed one more item. A replica that has passed none yet is tried first. One that
    /// gets no items seems faster with time, and so is tried again: it may have been slow because it had just started.
    pub(super) fn expected(&self, now: Instant) -> Duration {
        let idle = now.duration_since(self.last_sent).as_secs_f64() / HALVED_AFTER.as_secs_f64();
        let pace = self.pace.unwrap_or_default().mul_f64(0.5_f64.powf(idle));
        pace * u32::try_from(self.pending.len() + 1).unwrap_or(u32::MAX)
    }

    /// Largest payload that both sides take.
    pub(super) fn limit(&self, own: usize) -> usize {
        usize::try_from(self.description.max_payload).map_or(own, |peer| peer.min(own))
    }

    /// True if one more item fits. A payload that is larger than all the room goes alone.
    pub(super) fn has_room(&self, settings: &Settings, bytes: usize) -> bool {
        self.untaken < settings.window
            && (self.untaken == 0 || self.untaken_bytes + bytes <= UNTAKEN_BYTES)
    }

    /// Sends an item, and keeps its name.
    pub(super) fn send(&mut self, mut outgoing: Outgoing, clock: Instant) {
        let now = Instant::now();
        if let Some(visit) = outgoing.item.visits.last_mut() {
            visit.sending = now.duration_since(outgoing.ready);
        }
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        let stamp = Stamp {
            sequence,
            sent_ns: nanos(now.duration_since(clock)),
            half_round_trip_ns: nanos(self.half_round_trip),
        };
        let content = Some(Content::Item(outgoing.item.to_wire(stamp, now)));
        if let Some(parcels) = &self.parcels {
            // The stream's end is told by its receipts.
            drop(parcels.send(wire::Parcel { content }));
        }
        let bytes = outgoing.item.payload_bytes();
        if let Body::Payload(payload) = &mut outgoing.item.body {
            payload.clear();
        }
        self.untaken += 1;
        self.untaken_bytes += bytes;
        self.last_sent = now;
        let ahead = u32::try_from(self.pending.len()).unwrap_or(u32::MAX - 1);
        let pending = Pending { outgoing, sent: now, ahead, untaken: Some(bytes) };
        self.pending.insert(sequence, pending);
    }

    /// The replica has the item: the senders before this stage may forget it.
    pub(super) fn taken(&mut self, sequence: u64, held_ns: u64) {
        let Some(pending) = self.pending.get_mut(&sequence) else { return };
        let Some(bytes) = pending.untaken.take() else { return };
        self.untaken -= 1;
        self.untaken_bytes -= bytes;
        let round_trip = pending.sent.elapsed().saturating_sub(Duration::from_nanos(held_ns));
        self.half_round_trip = self.half_round_trip.min(round_trip / 2);
        for custody in pending.outgoing.custodies.drain(..) {
            custody.release();
        }
    }

    /// The item is in the hands of the stages after the replica.
    pub(super) fn passed(&mut self, sequence: u64) {
        self.taken(sequence, 0);
        let Some(pending) = self.pending.remove(&sequence) else { return };
        let time = pending.sent.elapsed() / (pending.ahead + 1);
        let pace = self.pace.unwrap_or(time);
        self.pace = Some((pace * (NEWEST - 1) + time) / NEWEST);
    }

    pub(super) fn ping(&self, clock: Instant) {
        if let Some(parcels) = &self.parcels {
            drop(parcels.send(ping(clock)));
        }
    }

    pub(super) fn pong(&mut self, sent_ns: u64, clock: Instant) {
        let round_trip = clock.elapsed().saturating_sub(Duration::from_nanos(sent_ns));
        self.half_round_trip = self.half_round_trip.min(round_trip / 2);
    }

    /// Sends nothing more. The replica ends the stream when it has passed everything.
    pub(super) fn close(&mut self) {
        self.parcels = None;
    }

    /// Items that the replica never passed, in their order.
    pub(super) fn unpassed(self) -> Vec<Outgoing> {
        self.pending.into_values().map(|pending| pending.outgoing).collect()
    }
}
