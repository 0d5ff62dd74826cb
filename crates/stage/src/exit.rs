//! The exit of a pipeline: the last stage publishes the end of each item to its listeners.
//!
//! A new listener first gets the most recent ends again, so that one that reconnects misses none. The ends are in
//! memory only: a last stage that is killed loses those that it has not published.

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
    recent_ids::RecentIds,
    visit::Visit,
    wire::{self, end::Content},
};

/// Handle by which workers report the end of items.
pub(crate) struct EndSender {
    ends: mpsc::UnboundedSender<(Item, Vec<Custody>)>,
}

/// The task that publishes ends to listeners, each id once.
pub(crate) struct Publisher {
    ends: mpsc::UnboundedReceiver<(Item, Vec<Custody>)>,
    recent_ids: RecentIds,
    listeners: broadcast::Sender<wire::Ended>,
    /// The most recent ends, oldest first.
    recent_ends: VecDeque<wire::Ended>,
    requests: mpsc::Receiver<Request>,
}

/// Handle for new listeners, until the task has ended.
#[derive(Clone, Debug)]
pub(crate) struct EndSubscriber(mpsc::Sender<Request>);

/// Subscription of a listener. The task answers it between two ends, so each end is in exactly one part of the answer.
type Request = oneshot::Sender<(VecDeque<wire::Ended>, broadcast::Receiver<wire::Ended>)>;

/// Ends that are buffered for a slow listener. Older ones are dropped and reported as missed.
const LISTENER_BUFFER: usize = 4096;

/// Ends that a new listener gets again: those of a few seconds, the time to find a new replica.
const MAX_RECENT_ENDS: usize = 1024;

// === impl EndSender ===

impl EndSender {
    pub(crate) fn new() -> (Self, Publisher, EndSubscriber) {
        let (ends, receiver) = mpsc::unbounded_channel();
        let (requester, requests) = mpsc::channel(1);
        let publisher = Publisher {
            ends: receiver,
            recent_ids: RecentIds::default(),
            listeners: broadcast::Sender::new(LISTENER_BUFFER),
            recent_ends: VecDeque::new(),
            requests,
        };
        (Self { ends }, publisher, EndSubscriber(requester))
    }

    /// Reports that the item leaves the pipeline.
    pub(crate) fn send(&self, item: Item, custodies: &[Custody]) {
        // The publisher runs until the workers have ended.
        drop(self.ends.send((item, custodies.to_vec())));
    }
}

// === impl Publisher ===

impl Publisher {
    /// Runs until all workers have ended.
    pub(crate) async fn run(mut self) {
        loop {
            tokio::select! {
                end = self.ends.recv() => match end {
                    Some((item, custodies)) => self.publish(&item, &custodies),
                    None => return,
                },
                Some(request) = self.requests.recv() => {
                    // An error means that the listener has gone.
                    drop(request.send((self.recent_ends.clone(), self.listeners.subscribe())));
                }
            }
        }
    }

    fn publish(&mut self, item: &Item, custodies: &[Custody]) {
        if self.recent_ids.insert(item.id) {
            let end = to_wire(item);
            if self.recent_ends.len() == MAX_RECENT_ENDS {
                self.recent_ends.pop_front();
            }
            self.recent_ends.push_back(end.clone());
            // An error means that there is no listener.
            drop(self.listeners.send(end));
        }
        custodies.iter().for_each(Custody::release);
    }
}

// === impl EndSubscriber ===

impl EndSubscriber {
    /// Stream for a new listener: the most recent ends, then all later ones. `None` after the last item.
    pub(crate) async fn listen(
        &self,
    ) -> Option<impl Stream<Item = Result<wire::End, Status>> + use<>> {
        let (request, answer) = oneshot::channel();
        self.0.send(request).await.ok()?;
        let (recent, later_receiver) = answer.await.ok()?;
        let recent =
            recent.into_iter().map(|end| Ok(wire::End { content: Some(Content::Ended(end)) }));
        Some(tokio_stream::iter(recent).chain(later_ends(later_receiver)))
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

/// Stream of the ends after the subscription.
fn later_ends(
    ends: broadcast::Receiver<wire::Ended>,
) -> impl Stream<Item = Result<wire::End, Status>> {
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
        Item { id, sender: String::new(), body, visits: Vec::new(), deadline: None }
    }

    #[tokio::test]
    async fn a_slow_listener_gets_the_number_of_missed_ends_and_blocks_no_item() {
        let (sender, publisher, subscriber) = EndSender::new();
        let subscribe_and_send = async {
            let listener = subscriber.listen().await.expect("the publisher runs");
            for id in 0..LISTENER_BUFFER as u64 + 7 {
                sender.send(item(id), &[]);
            }
            drop(sender);
            listener
        };
        let (listener, ()) = tokio::join!(subscribe_and_send, publisher.run());
        let received: Vec<_> = listener.collect().await;
        let contents: Vec<_> = received.into_iter().filter_map(|end| end.ok()?.content).collect();
        assert_eq!(contents[0], Content::Missed(wire::Missed { count: 7 }));
        assert_eq!(contents.len(), 1 + LISTENER_BUFFER);
        assert!(subscriber.listen().await.is_none(), "the last item has left");
    }

    #[tokio::test]
    async fn an_id_that_ends_twice_is_published_once_and_both_senders_get_a_receipt() {
        let (sender, publisher, subscriber) = EndSender::new();
        let (receipts, mut inputs) = mpsc::unbounded_channel();
        let subscribe_and_send = async {
            let listener = subscriber.listen().await.expect("the publisher runs");
            for sequence in [3, 4] {
                sender.send(item(9), &[Custody::new(sequence, receipts.clone())]);
            }
            drop((sender, receipts));
            listener
        };
        let (listener, ()) = tokio::join!(subscribe_and_send, publisher.run());
        assert_eq!(listener.collect::<Vec<_>>().await.len(), 1);
        let mut receipt_count = 0;
        while inputs.recv().await.is_some() {
            receipt_count += 1;
        }
        assert_eq!(receipt_count, 2);
    }

    #[tokio::test]
    async fn a_late_listener_gets_the_most_recent_ends_once() {
        let (sender, mut publisher, subscriber) = EndSender::new();
        for id in 0..MAX_RECENT_ENDS as u64 + 5 {
            publisher.publish(&item(id), &[]);
        }
        let subscribe_and_send = async {
            let listener = subscriber.listen().await.expect("the publisher runs");
            sender.send(item(7_000), &[]);
            drop(sender);
            listener
        };
        let (listener, ()) = tokio::join!(subscribe_and_send, publisher.run());
        let ids = listener.filter_map(|end| match end.ok()?.content? {
            Content::Ended(end) => Some(end.id),
            Content::Missed(_) => None,
        });
        let ids: Vec<_> = ids.collect().await;
        assert_eq!((ids.len(), ids[0], ids[MAX_RECENT_ENDS]), (MAX_RECENT_ENDS + 1, 5, 7_000));
    }
}
