//! One stream to a replica, and the state of each item on it.
//!
//! ```text
//! sent ──(Taken)──> taken ──(Passed)──> removed
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
    settings::{MAX_UNACKNOWLEDGED_BYTES, Settings},
    visit::nanos,
    wire::{self, parcel::Content},
};

/// An open stream.
#[derive(Debug)]
pub(super) struct Link {
    description: wire::DescribeResponse,
    /// `None` once the stream is closed for sending.
    parcels: Option<mpsc::UnboundedSender<wire::Parcel>>,
    /// Time of the replica's receipt `Closing`.
    draining_since: Option<Instant>,
    half_round_trip: Duration,
    /// Items that the replica has not passed, by sequence number.
    pending: BTreeMap<u64, Pending>,
    next_sequence: u64,
    /// Moving average of the time per item at the replica; `None` before it has passed one.
    item_time: Option<Duration>,
    last_sent: Instant,
    /// Number of items without a receipt `Taken`.
    unacknowledged_items: usize,
    /// Payload bytes of these items.
    unacknowledged_bytes: usize,
}

/// An item that was sent, without its payload.
#[derive(Debug)]
struct Pending {
    outgoing: Outgoing,
    sent: Instant,
    /// Number of items on the stream that were sent before and not passed yet.
    items_ahead: u32,
    /// Payload bytes; `None` once the replica has taken the item.
    unacknowledged_bytes: Option<usize>,
}

/// Inverse weight of the newest item in the moving average.
const AVERAGE_WEIGHT: u32 = 8;

/// Half-life of the average of an idle replica: after this time, the replica counts as twice as fast.
const IDLE_HALF_LIFE: Duration = Duration::from_secs(10);

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
            item_time: None,
            last_sent: Instant::now(),
            unacknowledged_items: 0,
            unacknowledged_bytes: 0,
        }
    }

    pub(super) fn replica(&self) -> &str {
        &self.description.replica
    }

    pub(super) fn is_join(&self) -> bool {
        self.description.joins
    }

    /// True if the replica accepts items and does not drain.
    pub(super) fn is_open(&self) -> bool {
        self.parcels.is_some() && self.draining_since.is_none()
    }

    /// Start of the replica's drain, if it still accepts items.
    pub(super) fn draining_since(&self) -> Option<Instant> {
        self.draining_since.filter(|_| self.parcels.is_some())
    }

    /// Records that the replica drains.
    pub(super) fn set_draining(&mut self, now: Instant) {
        self.draining_since.get_or_insert(now);
    }

    pub(super) fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    /// Number of items that the replica has not passed.
    pub(super) fn pending_count(&self) -> usize {
        self.pending.len()
    }

    /// Expected time until the replica has passed one more item. It is zero for a replica that has passed none yet. For
    /// an idle replica it decays, so that a replica that was slow at its start is tried again.
    pub(super) fn expected_wait(&self, now: Instant) -> Duration {
        let idle = now.duration_since(self.last_sent).as_secs_f64() / IDLE_HALF_LIFE.as_secs_f64();
        let item_time = self.item_time.unwrap_or_default().mul_f64(0.5_f64.powf(idle));
        item_time * u32::try_from(self.pending.len() + 1).unwrap_or(u32::MAX)
    }

    /// Largest payload in bytes that both sides accept.
    pub(super) fn max_payload(&self, own_limit: usize) -> usize {
        usize::try_from(self.description.max_payload)
            .map_or(own_limit, |peer_limit| peer_limit.min(own_limit))
    }

    /// True if one more item fits in the window and in [`MAX_UNACKNOWLEDGED_BYTES`]. A larger payload is sent alone.
    pub(super) fn has_capacity(&self, settings: &Settings, bytes: usize) -> bool {
        self.unacknowledged_items < settings.window
            && (self.unacknowledged_items == 0
                || self.unacknowledged_bytes + bytes <= MAX_UNACKNOWLEDGED_BYTES)
    }

    /// Sends an item, and keeps it without its payload.
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
            // An error means that the stream has ended. Its receipts show the end.
            drop(parcels.send(wire::Parcel { content }));
        }
        let bytes = outgoing.item.payload_bytes();
        if let Body::Payload(payload) = &mut outgoing.item.body {
            payload.clear();
        }
        self.unacknowledged_items += 1;
        self.unacknowledged_bytes += bytes;
        self.last_sent = now;
        let ahead = u32::try_from(self.pending.len()).unwrap_or(u32::MAX - 1);
        let pending =
            Pending { outgoing, sent: now, items_ahead: ahead, unacknowledged_bytes: Some(bytes) };
        self.pending.insert(sequence, pending);
    }

    /// Handles the receipt `Taken`: releases the custody of the previous stages.
    pub(super) fn on_taken(&mut self, sequence: u64, held_ns: u64) {
        let Some(pending) = self.pending.get_mut(&sequence) else { return };
        let Some(bytes) = pending.unacknowledged_bytes.take() else { return };
        self.unacknowledged_items -= 1;
        self.unacknowledged_bytes -= bytes;
        let round_trip = pending.sent.elapsed().saturating_sub(Duration::from_nanos(held_ns));
        self.half_round_trip = self.half_round_trip.min(round_trip / 2);
        for custody in pending.outgoing.custodies.drain(..) {
            custody.release();
        }
    }

    /// Handles the receipt `Passed`: the item is done, and its time enters the average.
    pub(super) fn on_passed(&mut self, sequence: u64) {
        self.on_taken(sequence, 0);
        let Some(pending) = self.pending.remove(&sequence) else { return };
        let time = pending.sent.elapsed() / (pending.items_ahead + 1);
        let item_time = self.item_time.unwrap_or(time);
        self.item_time = Some((item_time * (AVERAGE_WEIGHT - 1) + time) / AVERAGE_WEIGHT);
    }

    pub(super) fn send_ping(&self, clock: Instant) {
        if let Some(parcels) = &self.parcels {
            drop(parcels.send(ping(clock)));
        }
    }

    pub(super) fn on_pong(&mut self, sent_ns: u64, clock: Instant) {
        let round_trip = clock.elapsed().saturating_sub(Duration::from_nanos(sent_ns));
        self.half_round_trip = self.half_round_trip.min(round_trip / 2);
    }

    /// Closes the stream for sending. The replica ends the stream when it has passed all items.
    pub(super) fn close(&mut self) {
        self.parcels = None;
    }

    /// Items that the replica has not passed, in the order of sending.
    pub(super) fn into_unpassed(self) -> Vec<Outgoing> {
        self.pending.into_values().map(|pending| pending.outgoing).collect()
    }
}
