//! The exit of a pipeline: items leave it at a stage without a next one, and listeners are told.
//!
//! A listener is told the newest ends first, so that one that connects anew misses none. A last stage that is killed takes
//! along the ends that it has not told yet.

use std::collections::VecDeque;

use tokio::sync::{broadcast, mpsc, oneshot};
use tokio_stream::{
    Stream, StreamExt as _,
    wrappers::{BroadcastStream, errors::BroadcastStreamRecvError},
};
use tonic::Status;

use crate::{
    custody::Custody,
    item::{Body, Item},
    seen::Seen,
    visit::Visit,
    wire::{self, end::Content},
};

/// The side of the stage at which items leave.
pub(crate) struct Exit {
    ends: mpsc::UnboundedSender<(Item, Vec<Custody>)>,
}

/// The task that tells ends to listeners, each id once.
pub(crate) struct Teller {
    ends: mpsc::UnboundedReceiver<(Item, Vec<Custody>)>,
    seen: Seen,
    listeners: broadcast::Sender<wire::Ended>,
    /// The newest ends.
    recent: VecDeque<wire::Ended>,
    requests: mpsc::Receiver<Request>,
}

/// Access for listeners, until the last item has left.
#[derive(Clone, Debug)]
pub(crate) struct Listeners(mpsc::Sender<Request>);

/// A listener's wish. It is answered between two ends, so that none is in both parts of the answer or in neither.
type Request = oneshot::Sender<(VecDeque<wire::Ended>, broadcast::Receiver<wire::Ended>)>;

/// Ends that a slow listener may be behind.
const BACKLOG: usize = 4096;

/// Ends that a new listener is told: those of some seconds, in which a listener finds a new replica.
const RECENT: usize = 1024;

// === impl Exit ===

impl Exit {
    pub(crate) fn new() -> (Self, Teller, Listeners) {
        let (ends, receiver) = mpsc::unbounded_channel();
        let (requester, requests) = mpsc::channel(1);
        let teller = Teller {
            ends: receiver,
            seen: Seen::default(),
            listeners: broadcast::Sender::new(BACKLOG),
            recent: VecDeque::new(),
            requests,
        };
        (Self { ends }, teller, Listeners(requester))
    }

    /// The item leaves the pipeline.
    pub(crate) fn end(&self, item: Item, custodies: &[Custody]) {
        // The teller ends after the workers.
        drop(self.ends.send((item, custodies.to_vec())));
    }
}

// === impl Teller ===

impl Teller {
    /// Runs until the stage's workers have ended.
    pub(crate) async fn run(mut self) {
        loop {
            tokio::select! {
                end = self.ends.recv() => match end {
                    Some((item, custodies)) => self.tell(&item, &custodies),
                    None => return,
                },
                Some(request) = self.requests.recv() => {
                    // A listener that left meanwhile needs no answer.
                    drop(request.send((self.recent.clone(), self.listeners.subscribe())));
                }
            }
        }
    }

    fn tell(&mut self, item: &Item, custodies: &[Custody]) {
        if self.seen.is_first(item.id) {
            let end = to_wire(item);
            if self.recent.len() == RECENT {
                self.recent.pop_front();
            }
            self.recent.push_back(end.clone());
            // Nobody listens, perhaps.
            drop(self.listeners.send(end));
        }
        custodies.iter().for_each(Custody::release);
    }
}

// === impl Listeners ===

impl Listeners {
    /// The stream of a new listener: the newest ends, then each later one. `None` after the last item.
    pub(crate) async fn listen(
        &self,
    ) -> Option<impl Stream<Item = Result<wire::End, Status>> + use<>> {
        let (request, answer) = oneshot::channel();
        self.0.send(request).await.ok()?;
        let (before, after) = answer.await.ok()?;
        let before =
            before.into_iter().map(|end| Ok(wire::End { content: Some(Content::Ended(end)) }));
        Some(tokio_stream::iter(before).chain(told(after)))
    }
}

fn to_wire(item: &Item) -> wire::Ended {
    let failure = match &item.body {
        Body::Payload(_) => None,
        Body::Failure(failure) => Some(failure.to_wire()),
    };
    wire::Ended {
        id: item.id,
        visits: item.visits.iter().map(Visit::to_wire).collect(),
        failure,
        payload_bytes: item.payload_bytes() as u64,
    }
}

/// The stream of one listener.
fn told(ends: broadcast::Receiver<wire::Ended>) -> impl Stream<Item = Result<wire::End, Status>> {
    BroadcastStream::new(ends).map(|end| {
        let content = match end {
            Ok(end) => Content::Ended(end),
            Err(BroadcastStreamRecvError::Lagged(count)) => Content::Missed(wire::Missed { count }),
        };
        Ok(wire::End { content: Some(content) })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(id: u64) -> Item {
        let body = Body::Payload(bytes::Bytes::from_static(b"abc"));
        Item { id, from: String::new(), body, visits: Vec::new(), deadline: None }
    }

    #[tokio::test]
    async fn a_listener_that_does_not_read_is_told_how_many_it_missed_and_holds_nobody_back() {
        let (exit, teller, listeners) = Exit::new();
        let ending = async {
            let listener = listeners.listen().await.expect("the teller is here");
            for id in 0..BACKLOG as u64 + 7 {
                exit.end(item(id), &[]);
            }
            drop(exit);
            listener
        };
        let (listener, ()) = tokio::join!(ending, teller.run());
        let told: Vec<_> = listener.collect().await;
        let contents: Vec<_> = told.into_iter().filter_map(|end| end.ok()?.content).collect();
        assert_eq!(contents[0], Content::Missed(wire::Missed { count: 7 }));
        assert_eq!(contents.len(), 1 + BACKLOG);
        assert!(listeners.listen().await.is_none(), "the last item has left");
    }

    #[tokio::test]
    async fn an_id_that_ends_twice_is_told_once_and_both_senders_are_answered() {
        let (exit, teller, listeners) = Exit::new();
        let (notes, mut receipts) = mpsc::unbounded_channel();
        let ending = async {
            let listener = listeners.listen().await.expect("the teller is here");
            for sequence in [3, 4] {
                exit.end(item(9), &[Custody::new(sequence, notes.clone())]);
            }
            drop((exit, notes));
            listener
        };
        let (listener, ()) = tokio::join!(ending, teller.run());
        assert_eq!(listener.collect::<Vec<_>>().await.len(), 1);
        let mut answered = 0;
        while receipts.recv().await.is_some() {
            answered += 1;
        }
        assert_eq!(answered, 2);
    }

    #[tokio::test]
    async fn a_listener_that_comes_late_is_told_the_newest_ends_once() {
        let (exit, mut teller, listeners) = Exit::new();
        for id in 0..RECENT as u64 + 5 {
            teller.tell(&item(id), &[]);
        }
        let ending = async {
            let listener = listeners.listen().await.expect("the teller is here");
            exit.end(item(7_000), &[]);
            drop(exit);
            listener
        };
        let (listener, ()) = tokio::join!(ending, teller.run());
        let ids = listener.filter_map(|end| match end.ok()?.content? {
            Content::Ended(end) => Some(end.id),
            Content::Missed(_) => None,
        });
        let ids: Vec<_> = ids.collect().await;
        assert_eq!((ids.len(), ids[0], ids[RECENT]), (RECENT + 1, 5, 7_000));
    }
}
