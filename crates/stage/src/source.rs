//! The source of a pipeline: creates items and sends them to the first stage.

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
    panics::propagate_panic,
    settings::{Identity, Settings},
};

/// A source of items for the first stage of a pipeline.
pub struct Source {
    name: String,
    outlet: Outlet,
    next_id: u64,
    /// The task that owns the streams.
    tasks: JoinSet<()>,
}

// === impl Source ===

impl Source {
    /// Makes a source named `name` for the stage `first`. It connects in the background; until then items wait.
    pub fn connect(
        name: &str,
        first: &str,
        addresses: impl Into<Addresses>,
        settings: Settings,
        metrics: StageMetrics,
    ) -> Self {
        let identity = Identity { stage: name.into(), replica: "source".into() };
        // Never cancelled: a source has no drain signal, see `finish`.
        let draining = CancellationToken::new();
        let (outlet, task) =
            Outlet::new(identity, first, addresses.into(), settings, metrics, draining);
        let mut tasks = JoinSet::new();
        tasks.spawn(Box::pin(task.run()));
        // Random upper half: two sources of a pipeline collide with a probability of 1 in 2^32.
        let random = RandomState::new().hash_one(name) & 0xffff_ffff_0000_0000;
        Self { name: name.to_owned(), outlet, next_id: random, tasks }
    }

    /// Sends an item as soon as the first stage has capacity, and returns its id. With a deadline, every stage must
    /// start its processing within that time from now; otherwise the item fails.
    pub async fn send(&mut self, payload: Bytes, deadline: Option<Duration>) -> u64 {
        let (id, ready) = (self.next_id, Instant::now());
        self.next_id = self.next_id.wrapping_add(1);
        let item = Item {
            id,
            sender: self.name.clone(),
            body: Body::Payload(payload),
            visits: Vec::new(),
            deadline: deadline.and_then(|duration| ready.checked_add(duration)),
        };
        self.outlet.send(Outgoing { item, custodies: Vec::new(), ready }).await;
        id
    }

    /// Waits until the first stage has passed all items.
    pub async fn finish(self) {
        let Self { outlet, mut tasks, .. } = self;
        drop(outlet);
        while let Some(result) = tasks.join_next().await {
            propagate_panic(result);
        }
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("name", &self.name).finish_non_exhaustive()
    }
}
