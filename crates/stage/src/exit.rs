//! The exit of a pipeline: items leave it at a stage without a next one, and listeners are told.
//!
//! An end is told once, to the listeners of that moment, and kept by nobody. A last stage that is killed takes along
//! the ends that it has not told yet.

use tokio::sync::{broadcast, mpsc};
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
}

/// Ends that a slow listener may be behind.
const BACKLOG: usize = 4096;

// === impl Exit ===

impl Exit {
    pub(crate) fn new() -> (Self, Teller) {
        let (ends, receiver) = mpsc::unbounded_channel();
        let listeners = broadcast::Sender::new(BACKLOG);
        (Self { ends }, Teller { ends: receiver, seen: Seen::default(), listeners })
    }

    /// The item leaves the pipeline.
    pub(crate) fn end(&self, item: Item, custodies: &[Custody]) {
        // The teller ends after the workers.
        drop(self.ends.send((item, custodies.to_vec())));
    }
}

// === impl Teller ===

impl Teller {
    /// Handle by which listeners subscribe until the last item has left.
    pub(crate) fn listeners(&self) -> broadcast::WeakSender<wire::Ended> {
        self.listeners.downgrade()
    }

    /// Runs until the stage's workers have ended.
    pub(crate) async fn run(mut self) {
        while let Some((item, custodies)) = self.ends.recv().await {
            if self.seen.is_first(item.id) {
                // Nobody listens, perhaps.
                drop(self.listeners.send(to_wire(&item)));
            }
            custodies.iter().for_each(Custody::release);
        }
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
pub(crate) fn told(
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
        Item { id, from: String::new(), body, visits: Vec::new(), deadline: None }
    }

    #[tokio::test]
    async fn a_listener_that_does_not_read_is_told_how_many_it_missed_and_holds_nobody_back() {
        let (exit, teller) = Exit::new();
        let listener = teller.listeners().upgrade().expect("the teller is here").subscribe();
        for id in 0..BACKLOG as u64 + 7 {
            exit.end(item(id), &[]);
        }
        drop(exit);
        teller.run().await;
        let told: Vec<_> = told(listener).collect().await;
        let contents: Vec<_> = told.into_iter().filter_map(|end| end.ok()?.content).collect();
        assert_eq!(contents[0], Content::Missed(wire::Missed { count: 7 }));
        assert_eq!(contents.len(), 1 + BACKLOG);
    }

    #[tokio::test]
    async fn an_id_that_ends_twice_is_told_once_and_both_senders_are_answered() {
        let (exit, teller) = Exit::new();
        let listener = teller.listeners().upgrade().expect("the teller is here").subscribe();
        let (notes, mut receipts) = mpsc::unbounded_channel();
        for sequence in [3, 4] {
            exit.end(item(9), &[Custody::new(sequence, notes.clone())]);
        }
        drop((exit, notes));
        teller.run().await;
        assert_eq!(told(listener).collect::<Vec<_>>().await.len(), 1);
        let mut answered = 0;
        while receipts.recv().await.is_some() {
            answered += 1;
        }
        assert_eq!(answered, 2);
    }
}
