//! The way into a stage: describes it, reads its streams, and hands items to the queue or to the join.

use tokio::{
    sync::{Semaphore, broadcast, mpsc, oneshot},
    time::Instant,
};
use tokio_stream::Stream;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::{Request, Response, Status, Streaming};

use std::{pin::Pin, sync::Arc};

use crate::{
    custody::{Custody, Note, Receipts},
    exit,
    item::{Body, Item},
    join::Part,
    link_time::LinkTime,
    queued::Queued,
    visit::nanos,
    wire::{self, parcel, receipt::Content},
};

/// The service of one stage.
pub(crate) struct Inlet {
    pub(crate) description: wire::DescribeResponse,
    /// Copies of each result: one per next stage, or the end.
    pub(crate) copies: usize,
    pub(crate) entrance: Entrance,
    /// Listeners to ends; none where stages follow.
    pub(crate) listeners: Option<broadcast::WeakSender<wire::Ended>>,
    pub(crate) readers: TaskTracker,
    /// Cancelled when the stage drains.
    pub(crate) closing: CancellationToken,
    /// Cancelled when the stage is gone.
    pub(crate) gone: CancellationToken,
}

/// The place where items go.
#[derive(Clone)]
pub(crate) enum Entrance {
    Queue { room: Arc<Semaphore>, arrivals: mpsc::UnboundedSender<Queued> },
    Join(mpsc::Sender<Part>),
}

/// The task that reads one stream.
struct Reader {
    parcels: Streaming<wire::Parcel>,
    notes: mpsc::UnboundedSender<Note>,
    entrance: Entrance,
    link_time: LinkTime,
    closing: CancellationToken,
}

/// The stage no longer takes items.
struct Closed;

// === impl Inlet ===

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl wire::stage_server::Stage for Inlet {
    type PassStream = Receipts;
    type EndsStream = Answers<wire::End>;

    async fn describe(
        &self,
        _: Request<wire::DescribeRequest>,
    ) -> Result<Response<wire::DescribeResponse>, Status> {
        Ok(Response::new(self.description.clone()))
    }

    async fn pass(
        &self,
        request: Request<Streaming<wire::Parcel>>,
    ) -> Result<Response<Receipts>, Status> {
        // Held before the look at `closing`: a drain waits for this reader, or this reader sees the drain.
        let token = self.readers.token();
        if self.closing.is_cancelled() {
            return Err(Status::unavailable("drains"));
        }
        let (notes, receiver) = mpsc::unbounded_channel();
        let reader = Reader {
            parcels: request.into_inner(),
            notes,
            entrance: self.entrance.clone(),
            link_time: LinkTime::starting_at(Instant::now()),
            closing: self.closing.clone(),
        };
        let gone = self.gone.clone();
        self.readers.spawn(async move { gone.run_until_cancelled(reader.run()).await });
        drop(token);
        Ok(Response::new(Receipts::new(receiver, self.copies)))
    }

    async fn ends(
        &self,
        _: Request<wire::EndsRequest>,
    ) -> Result<Response<Self::EndsStream>, Status> {
        let Some(listeners) = &self.listeners else {
            let stage = &self.description.stage;
            let text = format!("no item leaves the pipeline at {stage}: other stages follow");
            return Err(Status::failed_precondition(text));
        };
        let listeners = listeners.upgrade().ok_or_else(|| Status::unavailable("drains"))?;
        Ok(Response::new(Box::pin(exit::told(listeners.subscribe()))))
    }
}

// === impl Reader ===

impl Reader {
    /// Reads until the sender ends the stream, which it does soon after it hears of `Closing`.
    async fn run(mut self) {
        let mut says_closing = true;
        loop {
            let parcel = tokio::select! {
                parcel = self.parcels.message() => parcel,
                () = self.closing.cancelled(), if says_closing => {
                    says_closing = false;
                    self.answer(Content::Closing(wire::Closing {}));
                    continue;
                }
            };
            let Ok(Some(parcel)) = parcel else { return };
            let now = Instant::now();
            match parcel.content {
                Some(parcel::Content::Ping(wire::Ping { sent_ns })) => {
                    self.link_time.observe(sent_ns, now);
                    self.answer(Content::Pong(wire::Pong { sent_ns }));
                }
                Some(parcel::Content::Item(item)) => {
                    if let Err(Closed) = self.take(item, now).await {
                        return;
                    }
                }
                // A message of a newer peer.
                None => {}
            }
        }
    }

    /// Waits for room, and says that the item is taken.
    async fn take(&mut self, item: wire::Item, arrived: Instant) -> Result<(), Closed> {
        let (Item { id, from, body, visits, deadline }, stamp) = Item::from_wire(item, arrived);
        let excess = self.link_time.observe(stamp.sent_ns, arrived);
        let sequence = stamp.sequence;
        let mut queued = Queued {
            id,
            parts: match body {
                Body::Payload(payload) => Ok(vec![payload]),
                Body::Failure(failure) => Err(failure),
            },
            visits,
            deadline,
            custodies: vec![Custody::new(sequence, self.notes.clone())],
            arrived,
            link: excess + std::time::Duration::from_nanos(stamp.half_round_trip_ns),
            place: None,
        };
        let taken = |arrived: Instant| {
            Content::Taken(wire::Taken { sequence, held_ns: nanos(arrived.elapsed()) })
        };
        match &self.entrance {
            Entrance::Queue { room, arrivals } => {
                let place = Arc::clone(room).acquire_owned().await.map_err(|_| Closed)?;
                queued.place = Some(place);
                self.answer(taken(arrived));
                arrivals.send(queued).map_err(|_| Closed)
            }
            Entrance::Join(parts) => {
                let (accept, accepted) = oneshot::channel();
                let part = Part { from, item: queued, accept };
                parts.send(part).await.map_err(|_| Closed)?;
                accepted.await.map_err(|_| Closed)?;
                self.answer(taken(arrived));
                Ok(())
            }
        }
    }

    fn answer(&self, content: Content) {
        // A sender that is gone needs no answer.
        drop(self.notes.send(Note::Receipt(content)));
    }
}
