//! Feed of the page: updates the [`PageState`], the document that all readers share, from the index.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use hyper::body::Bytes;
use tokio::{
    sync::Semaphore,
    task::yield_now,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;
use windlass_host::{clock::Clock, shared::Shared};
use windlass_page::{NodeView, PageState, PendingPod, Snapshot, Source};

use super::view;
use crate::{
    explanation::{Explanation, STEP_NODES},
    index::Index,
};

/// Minimum time between two reads of the index.
const MIN_READ_INTERVAL: Duration = Duration::from_secs(1);
/// Time between two reads of the index while the page has no readers. These reads keep the page's history complete.
const IDLE_READ_INTERVAL: Duration = Duration::from_secs(10);
/// Time between two explanations of the pending pods.
const EXPLAIN_INTERVAL: Duration = Duration::from_secs(5);
/// Time between two reads of all nodes. The fragmentation of an unchanged node changes with the forecast.
const FULL_READ_INTERVAL: Duration = Duration::from_secs(60);
/// Number of pending pods that are explained, oldest first.
const MAX_EXPLAINED: usize = 20;
/// Number of pending pods that are listed, oldest first.
const MAX_PENDING: usize = 500;
/// Maximum duration of a long poll: the server delays the answer until the document changes.
const LONG_POLL_LIMIT: Duration = Duration::from_secs(20);
/// Maximum number of concurrent long polls. Further requests are answered at once; the page then polls every two
/// seconds.
const MAX_LONG_POLLS: usize = 200;

/// Reads the index, and updates the page's state.
#[derive(Debug)]
pub(crate) struct Feed {
    index: Arc<Shared<Index>>,
    page_state: Shared<PageState>,
    progress: Shared<Progress>,
    /// Serializes reads of the index.
    read_permit: Semaphore,
    long_polls: Semaphore,
    clock: Clock,
}

#[derive(Debug, Default)]
struct Progress {
    /// Number of the last index change in the page's state.
    last_change: u64,
    last_read: Option<Instant>,
    last_full_read: Option<Instant>,
    last_explanation: Option<Instant>,
    pending: Vec<PendingPod>,
}

/// A read of the index that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DueRead {
    /// Nodes that changed after this index change are read.
    after: u64,
    /// True if explanations of the pending pods are due too.
    with_explanations: bool,
}

// === impl Progress ===

impl Progress {
    /// The read that is due now, if any.
    fn due_read(&mut self, now: Instant) -> Option<DueRead> {
        let is_due =
            |last: Option<Instant>, interval| last.is_none_or(|last| now - last >= interval);
        if !is_due(self.last_read, MIN_READ_INTERVAL) {
            return None;
        }
        if is_due(self.last_full_read, FULL_READ_INTERVAL) {
            (self.last_full_read, self.last_change) = (Some(now), 0);
        }
        let with_explanations = is_due(self.last_explanation, EXPLAIN_INTERVAL);
        Some(DueRead { after: self.last_change, with_explanations })
    }
}

// === impl Feed ===

impl Feed {
    pub(crate) fn new(index: Arc<Shared<Index>>, clock: Clock) -> Self {
        let page_state = PageState::new(Source::Cluster, env!("CARGO_PKG_VERSION"), clock.now());
        Self {
            index,
            page_state: Shared::new(page_state),
            progress: Shared::default(),
            read_permit: Semaphore::new(1),
            long_polls: Semaphore::new(MAX_LONG_POLLS),
            clock,
        }
    }

    /// Updates the page's history while there are no readers. Never returns.
    pub(crate) async fn run(&self) {
        loop {
            if self.is_ready() {
                self.refresh(false).await;
            }
            sleep(IDLE_READ_INTERVAL).await;
        }
    }

    /// True once all objects have been read.
    pub(super) fn is_ready(&self) -> bool {
        self.index.with_lock(|index| index.is_synced())
    }

    /// The document as JSON, shared by all readers: complete, or the changes after the revision `after`. With a
    /// revision, waits for a change up to `LONG_POLL_LIMIT`.
    pub(super) async fn document(&self, after: Option<&str>, stop: &CancellationToken) -> Bytes {
        let deadline = Instant::now() + LONG_POLL_LIMIT;
        let permit = self.long_polls.try_acquire();
        loop {
            self.refresh(true).await;
            let is_changed = after.is_none_or(|after| {
                self.page_state.with_lock(|page_state| page_state.revision()).to_string() != after
            });
            if is_changed || permit.is_err() || Instant::now() >= deadline || stop.is_cancelled() {
                return self.page_state.with_lock(|page_state| page_state.json(after));
            }
            let next = Instant::now() + MIN_READ_INTERVAL;
            stop.run_until_cancelled(sleep_until(next.min(deadline))).await;
        }
    }

    /// Updates the page's state, unless another task is doing so or the last read is recent. `with_explanations` is
    /// true for readers, who also see explanations of the pending pods.
    async fn refresh(&self, with_explanations: bool) {
        let Ok(_permit) = self.read_permit.try_acquire() else { return };
        let Some(due_read) = self.progress.with_lock(|progress| progress.due_read(Instant::now()))
        else {
            return;
        };
        let (changed, removed, last_change) = self.changes(due_read.after).await;
        let pending = if with_explanations && due_read.with_explanations {
            Some(self.pending().await)
        } else {
            None
        };
        let read_at = Instant::now();
        let pending = self.progress.with_lock(|progress| {
            (progress.last_change, progress.last_read) = (last_change, Some(read_at));
            if let Some(pending) = pending {
                (progress.pending, progress.last_explanation) = (pending, Some(read_at));
            }
            progress.pending.clone()
        });
        let snapshot = Snapshot { changed, removed, pending, ..Snapshot::default() };
        let now = self.clock.now();
        self.page_state.with_lock(|page_state| page_state.update(now, snapshot));
    }

    /// Nodes that changed after the index change `after`, names of nodes to remove, and the number of the newest
    /// change.
    async fn changes(&self, mut after: u64) -> (Vec<NodeView>, Vec<String>, u64) {
        let (mut views, mut removed) = (BTreeMap::new(), BTreeSet::new());
        loop {
            let (nodes, removed_names, last_change) = self.index.with_lock(|index| {
                let step = index.changes_since(after, STEP_NODES);
                // Nodes without GPUs, such as the control plane's, are not shown.
                let (gpu_nodes, other_nodes): (Vec<_>, Vec<_>) =
                    step.nodes.iter().partition(|node| !node.facts.gpus.is_empty());
                let nodes: Vec<_> = gpu_nodes.into_iter().map(view::node).collect();
                let other_nodes = other_nodes.into_iter().map(|node| node.facts.name.clone());
                (
                    nodes,
                    step.deleted.into_iter().chain(other_nodes).collect::<Vec<_>>(),
                    step.last_change,
                )
            });
            if last_change == after {
                return (views.into_values().collect(), removed.into_iter().collect(), after);
            }
            // A node may be deleted and created again between two steps. The later step decides.
            for name in removed_names {
                views.remove(&name);
                removed.insert(name);
            }
            for node in nodes {
                removed.remove(&node.name);
                views.insert(node.name.clone(), node);
            }
            after = last_change;
            yield_now().await;
        }
    }

    async fn pending(&self) -> Vec<PendingPod> {
        let (pods, names) = self.index.with_lock(|index| (index.pending(), index.node_names()));
        let mut views = Vec::new();
        for (position, pod) in pods.iter().take(MAX_PENDING).enumerate() {
            // Allocating the claims of several pods on many nodes, again and again, would delay binds.
            let is_cheap = pod.claims.is_empty() || names.len() <= STEP_NODES;
            views.push(if position < MAX_EXPLAINED && is_cheap {
                let claims = self.index.with_lock(|index| index.pod_claims(pod));
                let refusals = Explanation::of_refusals(&self.index, pod, &claims, &names).await;
                view::explained(pod, refusals)
            } else {
                view::unexplained(pod)
            });
            yield_now().await;
        }
        views
    }
}
