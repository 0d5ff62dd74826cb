//! Items in transit: the id, a payload or a failure, and the visits so far.

use bytes::Bytes;
use tokio::time::{Duration, Instant};

use crate::{
    custody::Custody,
    failure::Failure,
    visit::{Visit, micros},
    wire,
};

/// An item between two stages.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) id: u64,
    /// Name of the sending stage.
    pub(crate) sender: String,
    pub(crate) body: Body,
    pub(crate) visits: Vec<Visit>,
    pub(crate) deadline: Option<Instant>,
}

/// Content of an item: the payload, or the failure that replaced it.
#[derive(Clone, Debug)]
pub(crate) enum Body {
    Payload(Bytes),
    Failure(Failure),
}

/// An item that waits to be sent to a next stage.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) item: Item,
    /// Released when the next stage has taken the item.
    pub(crate) custodies: Vec<Custody>,
    /// End of processing.
    pub(crate) ready: Instant,
}

/// Fields of one transfer on a stream: sequence number and times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stamp {
    pub(crate) sequence: u64,
    pub(crate) sent_ns: u64,
    pub(crate) half_round_trip_ns: u64,
}

// === impl Item ===

impl Item {
    pub(crate) fn from_wire(item: wire::Item, now: Instant) -> (Self, Stamp) {
        let stamp = Stamp {
            sequence: item.sequence,
            sent_ns: item.sent_ns,
            half_round_trip_ns: item.half_round_trip_ns,
        };
        let body = match item.failure {
            Some(failure) => Body::Failure(Failure::from_wire(failure)),
            None => Body::Payload(item.payload),
        };
        let remaining = (item.remaining_us > 0).then(|| Duration::from_micros(item.remaining_us));
        let item = Self {
            id: item.id,
            sender: item.from,
            body,
            visits: item.visits.into_iter().map(Visit::from_wire).collect(),
            deadline: remaining.and_then(|remaining| now.checked_add(remaining)),
        };
        (item, stamp)
    }

    pub(crate) fn to_wire(&self, stamp: Stamp, now: Instant) -> wire::Item {
        let (payload, failure) = match &self.body {
            Body::Payload(payload) => (payload.clone(), None),
            Body::Failure(failure) => (Bytes::new(), Some(failure.to_wire())),
        };
        // On the wire, zero means no deadline.
        let remaining = self.deadline.map_or(0, |at| micros(at.duration_since(now)).max(1));
        wire::Item {
            id: self.id,
            sequence: stamp.sequence,
            from: self.sender.clone(),
            payload,
            remaining_us: remaining,
            visits: self.visits.iter().map(Visit::to_wire).collect(),
            failure,
            sent_ns: stamp.sent_ns,
            half_round_trip_ns: stamp.half_round_trip_ns,
        }
    }

    /// Size of the payload in bytes; zero for a failure.
    pub(crate) fn payload_bytes(&self) -> usize {
        match &self.body {
            Body::Payload(payload) => payload.len(),
            Body::Failure(_) => 0,
        }
    }

    /// Turns a payload into a failure. An existing failure stays unchanged, so the first reason counts.
    pub(crate) fn fail(&mut self, failure: impl FnOnce() -> Failure) {
        if let Body::Payload(_) = self.body {
            self.body = Body::Failure(failure());
        }
    }
}
