//! The source of a pipeline: makes items and sends them to the first stage.

use std::{
    fmt,
    hash::{BuildHasher as _, RandomState},
};

use bytes::Bytes;
use tokio::{
    task::JoinSet,
    time::{Duration, Instant},
};
use tokio_util::sync::CancellationToken;

use crate::{
    address::Addresses,
    item::{Body, Item, Outgoing},
    metrics::StageMetrics,
    outlet::Outlet,
    panics::carry_on,
    settings::{Identity, Settings},
};

/// Sends items to the first stage of a pipeline.
pub struct Source {
    name: String,
    outlet: Outlet,
    next_id: u64,
    /// The task that owns the streams.
    carrier: JoinSet<()>,
}

// === impl Source ===

impl Source {
    /// A source named `name` for the stage `first`. It connects by itself; items wait meanwhile.
    pub fn connect(
        name: &str,
        first: &str,
        addresses: impl Into<Addresses>,
        settings: Settings,
        metrics: StageMetrics,
    ) -> Self {
        let identity = Identity { stage: name.into(), replica: "source".into() };
        // A source does not drain: it finishes.
        let draining = CancellationToken::new();
        let (outlet, carrier) =
            Outlet::new(identity, first, addresses.into(), settings, metrics, draining);
        let mut tasks = JoinSet::new();
        tasks.spawn(Box::pin(carrier.run()));
        // Other sources of the pipeline have other numbers, with a probability of one to four billions.
        let random = RandomState::new().hash_one(name) & 0xffff_ffff_0000_0000;
        Self { name: name.to_owned(), outlet, next_id: random, carrier: tasks }
    }

    /// Sends an item as soon as the first stage has room, and returns its id. With a deadline the item must be worked on
    /// within that time.
    pub async fn send(&mut self, payload: Bytes, deadline: Option<Duration>) -> u64 {
        let (id, ready) = (self.next_id, Instant::now());
        self.next_id = self.next_id.wrapping_add(1);
        let item = Item {
            id,
            from: self.name.clone(),
            body: Body::Payload(payload),
            visits: Vec::new(),
            deadline: deadline.and_then(|within| ready.checked_add(within)),
        };
        self.outlet.send(Outgoing { item, custodies: Vec::new(), ready }).await;
        id
    }

    /// Waits until the first stage has passed every item on.
    pub async fn finish(self) {
        let Self { outlet, mut carrier, .. } = self;
        drop(outlet);
        while let Some(ended) = carrier.join_next().await {
            carry_on(ended);
        }
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("name", &self.name).finish_non_exhaustive()
    }
}
