//! Listener for the ends of a pipeline: the items that leave at any replica of its last stage.

use std::pin::Pin;

use tokio::time::Duration;
use tokio_stream::{Stream, StreamExt as _, StreamMap};
use tonic::Streaming;

use crate::{
    address::{Addresses, ResolvedAddress},
    dial::{self, DialError},
    failure::Failure,
    recent_ids::RecentIds,
    replicas::Replicas,
    visit::Visit,
    wire::{self, end::Content},
};

/// An item that left the pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// Id that the source assigned.
    pub id: u64,
    /// Visited stages in order; after a join, those of all parts.
    pub visits: Vec<Visit>,
    /// Failure; `None` if the item has a result.
    pub failure: Option<Failure>,
    /// Size of the result in bytes; zero for a failure.
    pub payload_bytes: u64,
}

/// Event for a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndEvent {
    /// An item left the pipeline.
    End(End),
    /// Number of ends that were dropped because the listener was too slow.
    Missed(u64),
}

/// Ends of all replicas behind an address, without duplicates of the most recent ids.
pub struct EndListener {
    replicas: Replicas<Streaming<wire::End>>,
    streams: StreamMap<ResolvedAddress, Contents>,
    recent_ids: RecentIds,
}

/// Contents of one stream, then `None` at its end.
type Contents = Pin<Box<dyn Stream<Item = Option<Content>> + Send>>;

/// Maximum interval between two resolutions of the name.
const RESOLVE_INTERVAL: Duration = Duration::from_secs(10);

// === impl EndListener ===

impl EndListener {
    /// Connects to every replica behind the addresses, and waits for the first one.
    pub async fn listen(addresses: Addresses) -> Self {
        let dial = |target: ResolvedAddress| async move { listen_to(&target).await };
        let replicas = Replicas::new("the last stage".into(), addresses, RESOLVE_INTERVAL, dial);
        let streams = StreamMap::new();
        let mut listener = Self { replicas, streams, recent_ids: RecentIds::default() };
        let (target, stream) = listener.replicas.next_opened().await;
        listener.open(target, stream);
        listener
    }

    /// Waits for the next event. A replica whose stream ends is dialed again.
    pub async fn next(&mut self) -> EndEvent {
        loop {
            tokio::select! {
                (target, stream) = self.replicas.next_opened() => self.open(target, stream),
                Some((target, content)) = self.streams.next(), if !self.streams.is_empty() => {
                    match content {
                        None => {
                            self.streams.remove(&target);
                            self.replicas.on_ended(&target);
                        }
                        Some(Content::Missed(missed)) => return EndEvent::Missed(missed.count),
                        Some(Content::Ended(end)) if self.recent_ids.insert(end.id) => {
                            return EndEvent::End(End::from_wire(end));
                        }
                        Some(Content::Ended(_)) => {}
                    }
                }
            }
        }
    }

    /// Number of replicas with an open stream.
    pub fn connected(&self) -> usize {
        self.streams.len()
    }

    fn open(&mut self, target: ResolvedAddress, stream: Streaming<wire::End>) {
        let contents = stream.map(|end| end.ok().and_then(|end| end.content));
        self.streams.insert(target, Box::pin(contents.chain(tokio_stream::once(None))));
    }
}

impl std::fmt::Debug for EndListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EndListener").field("connected", &self.connected()).finish_non_exhaustive()
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

async fn listen_to(target: &ResolvedAddress) -> Result<Streaming<wire::End>, DialError> {
    let (mut client, _) = dial::connect(target, None).await?;
    Ok(client.ends(wire::EndsRequest {}).await.map_err(DialError::call)?.into_inner())
}
