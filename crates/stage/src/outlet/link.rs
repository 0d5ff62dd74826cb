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
    untaken: usize,
    untaken_bytes: usize,
}

/// An item on the stream. Its payload is gone.
#[derive(Debug)]
struct Pending {
    outgoing: Outgoing,
    sent: Instant,
    /// Bytes of its payload while the replica has not taken it.
    untaken: Option<usize>,
}

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
        self.pending.insert(sequence, Pending { outgoing, sent: now, untaken: Some(bytes) });
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
        self.pending.remove(&sequence);
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
