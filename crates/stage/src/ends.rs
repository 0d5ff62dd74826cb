//! Listens to the ends of a pipeline: the items that leave it at any replica of its last stage.

use std::pin::Pin;

use tokio::time::Duration;
use tokio_stream::{Stream, StreamExt as _, StreamMap};
use tonic::Streaming;

use crate::{
    address::{Addresses, Target},
    dial::{self, DialError},
    failure::Failure,
    replicas::Replicas,
    seen::Seen,
    visit::Visit,
    wire::{self, end::Content},
};

/// An item that left the pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// Id that the source made.
    pub id: u64,
    /// Each stage on its way, in order; after a join, the stages of all parts.
    pub visits: Vec<Visit>,
    /// The reason that it has no result.
    pub failure: Option<Failure>,
    /// Size of its result.
    pub payload_bytes: u64,
}

/// News for a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// An item left.
    End(End),
    /// This many ends were lost, since the listener was too slow.
    Missed(u64),
}

/// Ends of all replicas behind an address. Each id comes once.
pub struct Ends {
    replicas: Replicas<Streaming<wire::End>>,
    streams: StreamMap<Target, Contents>,
    seen: Seen,
}

/// Contents of one stream, and `None` at its end.
type Contents = Pin<Box<dyn Stream<Item = Option<Content>> + Send>>;

/// Pause between two looks at the name behind which the replicas are.
const RESOLVE_EVERY: Duration = Duration::from_secs(10);

// === impl Ends ===

impl Ends {
    /// Listens to every replica behind the address, and waits for the first one.
    pub async fn listen(addresses: Addresses) -> Self {
        let dial = |target: Target| async move { listen_to(&target).await };
        let replicas = Replicas::new("the last stage".into(), addresses, RESOLVE_EVERY, dial);
        let streams = StreamMap::new();
        let mut ends = Self { replicas, streams, seen: Seen::default() };
        let (target, stream) = ends.replicas.opened().await;
        ends.open(target, stream);
        ends
    }

    /// The next news. Waits for as long as there is none; replicas that end are dialed again.
    pub async fn next(&mut self) -> Told {
        loop {
            tokio::select! {
                (target, stream) = self.replicas.opened() => self.open(target, stream),
                Some((target, told)) = self.streams.next(), if !self.streams.is_empty() => {
                    match told {
                        None => {
                            self.streams.remove(&target);
                            self.replicas.ended(&target);
                        }
                        Some(Content::Missed(missed)) => return Told::Missed(missed.count),
                        Some(Content::Ended(end)) if self.seen.is_first(end.id) => {
                            return Told::End(End::from_wire(end));
                        }
                        Some(Content::Ended(_)) => {}
                    }
                }
            }
        }
    }

    /// Number of replicas that are listened to.
    pub fn connected(&self) -> usize {
        self.streams.len()
    }

    fn open(&mut self, target: Target, stream: Streaming<wire::End>) {
        let contents = stream.map(|end| end.ok().and_then(|end| end.content));
        self.streams.insert(target, Box::pin(contents.chain(tokio_stream::once(None))));
    }
}

impl std::fmt::Debug for Ends {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ends").field("connected", &self.connected()).finish_non_exhaustive()
    }
}

impl End {
    fn from_wire(end: wire::Ended) -> Self {
        Self {
            id: end.id,
            visits: end.visits.into_iter().map(Visit::from_wire).collect(),
            failure: end.failure.map(Failure::from_wire),
            payload_bytes: end.payload_bytes,
        }
    }
}

async fn listen_to(target: &Target) -> Result<Streaming<wire::End>, DialError> {
    let (mut client, _) = dial::stage(target, None).await?;
    Ok(client.ends(wire::EndsRequest {}).await.map_err(DialError::call)?.into_inner())
}
