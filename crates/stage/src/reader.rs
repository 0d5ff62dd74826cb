//! Reads one stream of items, and admits them to the queue or to the join.
//!
//! ```text
//!  arrived ──> inbox ──(slot in the queue, or space in the table of the join)──> admitted, receipt `Taken`
//! ```
//!
//! An item gets its arrival time as soon as it is read, so its wait for admission counts as time at this stage, not on
//! the link. The sender has at most a window of items in flight, which bounds the inbox. With [`INBOX`] items
//! the reader stops reading the stream.

use std::{collections::VecDeque, pin::Pin, sync::Arc};

use tokio::{
    sync::{Semaphore, mpsc, oneshot},
    time::{Duration, Instant},
};
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};

use crate::{
    custody::{Custody, ReceiptInput},
    item::{Body, Item},
    join::ItemPart,
    link_time::LinkTime,
    queued::Queued,
    visit::nanos,
    wire::{self, parcel, receipt::Content},
};

/// Destination of admitted items.
#[derive(Clone)]
pub(crate) enum ItemSink {
    Queue { queue_slots: Arc<Semaphore>, arrivals: mpsc::UnboundedSender<Queued> },
    Join(mpsc::Sender<ItemPart>),
}

/// The task that reads one stream.
pub(crate) struct Reader {
    parcels: Streaming<wire::Parcel>,
    receipts: mpsc::UnboundedSender<ReceiptInput>,
    sink: ItemSink,
    link_time: LinkTime,
    draining: CancellationToken,
    inbox: VecDeque<Arrival>,
    /// Pending admission of the oldest item.
    admission: Option<Admission>,
    /// True after the sender's last item.
    is_ended: bool,
}

/// An item that waits for admission.
struct Arrival {
    sender: String,
    sequence: u64,
    item: Queued,
}

type Admission = Pin<Box<dyn Future<Output = Result<(), Closed>> + Send>>;

/// The queue or the join has been closed.
struct Closed;

/// Maximum number of items that wait for admission.
const INBOX: usize = 256;

// === impl Reader ===

impl Reader {
    pub(crate) fn new(
        parcels: Streaming<wire::Parcel>,
        receipts: mpsc::UnboundedSender<ReceiptInput>,
        sink: ItemSink,
        draining: CancellationToken,
    ) -> Self {
        Self {
            parcels,
            receipts,
            sink,
            link_time: LinkTime::starting_at(Instant::now()),
            draining,
            inbox: VecDeque::new(),
            admission: None,
            is_ended: false,
        }
    }

    /// Reads and admits items until the sender ends the stream, which it does soon after the receipt `Closing`. If the
    /// stream breaks, items that wait for admission are dropped: their sender still has custody.
    pub(crate) async fn run(mut self) {
        let mut must_announce_closing = true;
        loop {
            if self.admission.is_none()
                && let Some(arrival) = self.inbox.pop_front()
            {
                let (sink, receipts) = (self.sink.clone(), self.receipts.clone());
                self.admission = Some(Box::pin(admit(arrival, sink, receipts)));
            }
            if self.is_ended && self.admission.is_none() {
                return;
            }
            tokio::select! {
                result = wait_for_admission(&mut self.admission), if self.admission.is_some() => {
                    self.admission = None;
                    if result.is_err() {
                        return;
                    }
                }
                parcel = self.parcels.message(), if !self.is_ended && self.inbox.len() < INBOX => {
                    if self.on_parcel(parcel).is_err() {
                        return;
                    }
                }
                () = self.draining.cancelled(), if must_announce_closing => {
                    must_announce_closing = false;
                    self.send_receipt(Content::Closing(wire::Closing {}));
                }
            }
        }
    }

    fn on_parcel(&mut self, parcel: Result<Option<wire::Parcel>, Status>) -> Result<(), Status> {
        let now = Instant::now();
        match parcel?.map(|parcel| parcel.content) {
            None => self.is_ended = true,
            Some(Some(parcel::Content::Ping(wire::Ping { sent_ns }))) => {
                self.link_time.observe(sent_ns, now);
                self.send_receipt(Content::Pong(wire::Pong { sent_ns }));
            }
            Some(Some(parcel::Content::Item(item))) => {
                let arrival = self.arrival(item, now);
                self.inbox.push_back(arrival);
            }
            // A message type of a newer peer.
            Some(None) => {}
        }
        Ok(())
    }

    fn arrival(&mut self, item: wire::Item, arrived: Instant) -> Arrival {
        let (Item { id, sender, body, visits, deadline }, stamp) = Item::from_wire(item, arrived);
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
            // The remaining time was measured when the item was sent.
            deadline: deadline.map(|at| at.checked_sub(link).unwrap_or(at)),
            custodies: vec![Custody::new(sequence, self.receipts.clone())],
            arrived,
            link,
            slot: None,
        };
        Arrival { sender, sequence, item }
    }

    fn send_receipt(&self, content: Content) {
        // An error means that the sender's stream has ended.
        drop(self.receipts.send(ReceiptInput::Receipt(content)));
    }
}

async fn wait_for_admission(admission: &mut Option<Admission>) -> Result<(), Closed> {
    match admission {
        Some(admission) => admission.await,
        None => std::future::pending().await,
    }
}

/// Waits for admission, and sends the receipt `Taken`.
async fn admit(
    arrival: Arrival,
    sink: ItemSink,
    receipts: mpsc::UnboundedSender<ReceiptInput>,
) -> Result<(), Closed> {
    let Arrival { sender, sequence, mut item } = arrival;
    let arrived = item.arrived;
    let send_taken = || {
        let held_ns = nanos(arrived.elapsed());
        drop(
            receipts.send(ReceiptInput::Receipt(Content::Taken(wire::Taken { sequence, held_ns }))),
        );
    };
    match sink {
        ItemSink::Queue { queue_slots, arrivals } => {
            item.slot = Some(queue_slots.acquire_owned().await.map_err(|_| Closed)?);
            send_taken();
            arrivals.send(item).map_err(|_| Closed)
        }
        ItemSink::Join(parts) => {
            let (accept, accepted) = oneshot::channel();
            parts.send(ItemPart { sender, item, accept }).await.map_err(|_| Closed)?;
            accepted.await.map_err(|_| Closed)?;
            send_taken();
            Ok(())
        }
    }
}
