//! Reads one stream of items, and admits them to the queue or to the join as there is room.
//!
//! ```text
//!  arrived ──> inbox ──(room in the queue, or in the table of the join)──> admitted, and told as taken
//! ```
//!
//! An item is read and stamped at once, so that its time on the link ends here and its wait for room is one for this
//! stage. The sender bounds the inbox, since it sends no more than a window of items that are not taken. Beyond
//! [`INBOX`] the stream is not read.

use std::{collections::VecDeque, pin::Pin, sync::Arc};

use tokio::{
    sync::{Semaphore, mpsc, oneshot},
    time::{Duration, Instant},
};
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};

use crate::{
    custody::{Custody, Note},
    item::{Body, Item},
    join::Part,
    link_time::LinkTime,
    queued::Queued,
    visit::nanos,
    wire::{self, parcel, receipt::Content},
};

/// The place where items go.
#[derive(Clone)]
pub(crate) enum Entrance {
    Queue { room: Arc<Semaphore>, arrivals: mpsc::UnboundedSender<Queued> },
    Join(mpsc::Sender<Part>),
}

/// The task that reads one stream.
pub(crate) struct Reader {
    parcels: Streaming<wire::Parcel>,
    notes: mpsc::UnboundedSender<Note>,
    entrance: Entrance,
    link_time: LinkTime,
    closing: CancellationToken,
    inbox: VecDeque<Arrival>,
    /// The first item's wait for room.
    admission: Option<Admission>,
    /// The sender sends nothing more.
    is_over: bool,
}

/// An item that waits for room.
struct Arrival {
    from: String,
    sequence: u64,
    item: Queued,
}

type Admission = Pin<Box<dyn Future<Output = Result<(), Closed>> + Send>>;

/// The stage takes no items any more.
struct Closed;

/// Items that are read before there is room for them.
const INBOX: usize = 256;

// === impl Reader ===

impl Reader {
    pub(crate) fn new(
        parcels: Streaming<wire::Parcel>,
        notes: mpsc::UnboundedSender<Note>,
        entrance: Entrance,
        closing: CancellationToken,
    ) -> Self {
        Self {
            parcels,
            notes,
            entrance,
            link_time: LinkTime::starting_at(Instant::now()),
            closing,
            inbox: VecDeque::new(),
            admission: None,
            is_over: false,
        }
    }

    /// Reads until the sender ends the stream, which it does soon after it hears of `Closing`, and admits everything.
    /// When the stream breaks, its sender or the one before answers for the items that wait.
    pub(crate) async fn run(mut self) {
        let mut says_closing = true;
        loop {
            if self.admission.is_none()
                && let Some(arrival) = self.inbox.pop_front()
            {
                let (entrance, notes) = (self.entrance.clone(), self.notes.clone());
                self.admission = Some(Box::pin(admit(arrival, entrance, notes)));
            }
            if self.is_over && self.admission.is_none() {
                return;
            }
            tokio::select! {
                admitted = until_admitted(&mut self.admission), if self.admission.is_some() => {
                    self.admission = None;
                    if admitted.is_err() {
                        return;
                    }
                }
                parcel = self.parcels.message(), if !self.is_over && self.inbox.len() < INBOX => {
                    if self.receive(parcel).is_err() {
                        return;
                    }
                }
                () = self.closing.cancelled(), if says_closing => {
                    says_closing = false;
                    self.answer(Content::Closing(wire::Closing {}));
                }
            }
        }
    }

    fn receive(&mut self, parcel: Result<Option<wire::Parcel>, Status>) -> Result<(), Status> {
        let now = Instant::now();
        match parcel?.map(|parcel| parcel.content) {
            None => self.is_over = true,
            Some(Some(parcel::Content::Ping(wire::Ping { sent_ns }))) => {
                self.link_time.observe(sent_ns, now);
                self.answer(Content::Pong(wire::Pong { sent_ns }));
            }
            Some(Some(parcel::Content::Item(item))) => {
                let arrival = self.arrival(item, now);
                self.inbox.push_back(arrival);
            }
            // A message of a newer peer.
            Some(None) => {}
        }
        Ok(())
    }

    fn arrival(&mut self, item: wire::Item, arrived: Instant) -> Arrival {
        let (Item { id, from, body, visits, deadline }, stamp) = Item::from_wire(item, arrived);
        let excess = self.link_time.observe(stamp.sent_ns, arrived);
        let link = excess + Duration::from_nanos(stamp.half_round_trip_ns);
        let sequence = stamp.sequence;
        let item = Queued {
            id,
            parts: match body {
                Body::Payload(payload) => Ok(vec![payload]),
                Body::Failure(failure) => Err(failure),
            },
            visits,
            // The time that remained was that of the sender.
            deadline: deadline.map(|at| at.checked_sub(link).unwrap_or(at)),
            custodies: vec![Custody::new(sequence, self.notes.clone())],
            arrived,
            link,
            place: None,
        };
        Arrival { from, sequence, item }
    }

    fn answer(&self, content: Content) {
        // A sender that is gone needs no answer.
        drop(self.notes.send(Note::Receipt(content)));
    }
}

async fn until_admitted(admission: &mut Option<Admission>) -> Result<(), Closed> {
    match admission {
        Some(admission) => admission.await,
        None => std::future::pending().await,
    }
}

/// Waits for room, and says that the item is taken.
async fn admit(
    arrival: Arrival,
    entrance: Entrance,
    notes: mpsc::UnboundedSender<Note>,
) -> Result<(), Closed> {
    let Arrival { from, sequence, mut item } = arrival;
    let arrived = item.arrived;
    let say_taken = || {
        let held_ns = nanos(arrived.elapsed());
        drop(notes.send(Note::Receipt(Content::Taken(wire::Taken { sequence, held_ns }))));
    };
    match entrance {
        Entrance::Queue { room, arrivals } => {
            item.place = Some(room.acquire_owned().await.map_err(|_| Closed)?);
            say_taken();
            arrivals.send(item).map_err(|_| Closed)
        }
        Entrance::Join(parts) => {
            let (accept, accepted) = oneshot::channel();
            parts.send(Part { from, item, accept }).await.map_err(|_| Closed)?;
            accepted.await.map_err(|_| Closed)?;
            say_taken();
            Ok(())
        }
    }
}
