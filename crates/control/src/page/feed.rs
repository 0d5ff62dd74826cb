//! Feed of the page: updates the [`Board`], the document that all readers share, from the index.

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
use windlass_page::{Board, NodeView, PendingPod, Snapshot, Source};

use super::view;
use crate::{
    explanation::{Explanation, reasons},
    facts::PodFacts,
    index::Index,
};

/// Minimum time between two reads of the index.
const READ_PAUSE: Duration = Duration::from_secs(1);
/// Time between two reads without readers, which keep the page's history complete.
const UNWATCHED_PAUSE: Duration = Duration::from_secs(10);
/// Time between two explanations of the pending pods.
const EXPLAIN_PAUSE: Duration = Duration::from_secs(5);
/// Time between two reads of all nodes. Fragmentation of an unchanged node depends on the forecast, which changes.
const FULL_PAUSE: Duration = Duration::from_secs(60);
/// Nodes per step. A step holds the lock of the index for less than a millisecond.
const STEP: usize = 200;
/// Number of pending pods that are explained, oldest first.
const MAX_EXPLAINED: usize = 20;
/// Number of pending pods that are listed, oldest first.
const MAX_PENDING: usize = 500;
/// Longest time for which a reader's request is held while nothing changes (long polling).
const HOLD: Duration = Duration::from_secs(20);
/// Maximum number of held requests. Further ones are answered at once, and the page then polls every two seconds.
const MAX_HELD: usize = 200;

/// The board of a cluster.
#[derive(Debug)]
pub(crate) struct Feed {
    index: Arc<Shared<Index>>,
    board: Shared<Board>,
    progress: Shared<Progress>,
    /// Lets one task at a time read the index.
    read_turn: Semaphore,
    held: Semaphore,
    clock: Clock,
}

#[derive(Debug, Default)]
struct Progress {
    /// Number of the last index change on the board.
    until: u64,
    last_read: Option<Instant>,
    last_full_read: Option<Instant>,
    last_explanation: Option<Instant>,
    pending: Vec<PendingPod>,
}

/// A read of the index that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Read {
    /// Nodes that changed after this index change are read.
    after: u64,
    /// True if explanations of the pending pods are due too.
    explains: bool,
}

// === impl Progress ===

impl Progress {
    /// The read that is due now, if any.
    fn next(&mut self, now: Instant) -> Option<Read> {
        let is_due = |last: Option<Instant>, pause| last.is_none_or(|last| now - last >= pause);
        if !is_due(self.last_read, READ_PAUSE) {
            return None;
        }
        if is_due(self.last_full_read, FULL_PAUSE) {
            (self.last_full_read, self.until) = (Some(now), 0);
        }
        let explains = is_due(self.last_explanation, EXPLAIN_PAUSE);
        Some(Read { after: self.until, explains })
    }
}

// === impl Feed ===

impl Feed {
    pub(crate) fn new(index: Arc<Shared<Index>>, clock: Clock) -> Self {
        let board = Board::new(Source::Cluster, env!("CARGO_PKG_VERSION"), clock.now());
        Self {
            index,
            board: Shared::new(board),
            progress: Shared::default(),
            read_turn: Semaphore::new(1),
            held: Semaphore::new(MAX_HELD),
            clock,
        }
    }

    /// Keeps the page's history while there are no readers. Never returns.
    pub(crate) async fn follow(&self) {
        loop {
            if self.is_ready() {
                self.refresh(false).await;
            }
            sleep(UNWATCHED_PAUSE).await;
        }
    }

    /// True once all objects have been read.
    pub(super) fn is_ready(&self) -> bool {
        self.index.step(|index| index.is_synced())
    }

    /// The document for a reader, as JSON that readers share: complete, or the changes after the revision `after`. With
    /// a revision it waits for a change.
    pub(super) async fn document(&self, after: Option<&str>, stop: &CancellationToken) -> Bytes {
        let until = Instant::now() + HOLD;
        let place = self.held.try_acquire();
        loop {
            self.refresh(true).await;
            let is_changed = after
                .is_none_or(|after| self.board.step(|board| board.revision()).to_string() != after);
            if is_changed || place.is_err() || Instant::now() >= until || stop.is_cancelled() {
                return self.board.step(|board| board.json(after));
            }
            let next = Instant::now() + READ_PAUSE;
            stop.run_until_cancelled(sleep_until(next.min(until))).await;
        }
    }

    /// Updates the board, unless another task is doing so or the last read is recent. `explains` is true for readers.
    async fn refresh(&self, explains: bool) {
        let Ok(_turn) = self.read_turn.try_acquire() else { return };
        let Some(read) = self.progress.step(|progress| progress.next(Instant::now())) else {
            return;
        };
        let (changed, gone, until) = self.changes(read.after).await;
        let pending = if explains && read.explains { Some(self.pending().await) } else { None };
        let done = Instant::now();
        let pending = self.progress.step(|progress| {
            (progress.until, progress.last_read) = (until, Some(done));
            if let Some(pending) = pending {
                (progress.pending, progress.last_explanation) = (pending, Some(done));
            }
            progress.pending.clone()
        });
        let snapshot = Snapshot { changed, gone, pending, ..Snapshot::default() };
        let now = self.clock.now();
        self.board.step(|board| board.update(now, snapshot));
    }

    /// Nodes changed after an index change, names of nodes to remove, and the number of the newest change.
    async fn changes(&self, mut after: u64) -> (Vec<NodeView>, Vec<String>, u64) {
        let (mut views, mut gone) = (BTreeMap::new(), BTreeSet::new());
        loop {
            let (nodes, names, until) = self.index.step(|index| {
                let step = index.inspect_changed(after, STEP);
                // Nodes without GPUs, such as the control plane's, are not shown.
                let (with, without): (Vec<_>, Vec<_>) =
                    step.nodes.iter().partition(|node| !node.facts.gpus.is_empty());
                let nodes: Vec<_> = with.into_iter().map(view::node).collect();
                let without = without.into_iter().map(|node| node.facts.name.clone());
                (nodes, step.gone.into_iter().chain(without).collect::<Vec<_>>(), step.until)
            });
            if until == after {
                return (views.into_values().collect(), gone.into_iter().collect(), after);
            }
            // A node may be deleted and created again between two steps. The later step counts.
            for name in names {
                views.remove(&name);
                gone.insert(name);
            }
            for node in nodes {
                gone.remove(&node.name);
                views.insert(node.name.clone(), node);
            }
            after = until;
            yield_now().await;
        }
    }

    async fn pending(&self) -> Vec<PendingPod> {
        let (pods, names) = self.index.step(|index| (index.pending(), index.node_names()));
        let mut views = Vec::new();
        for (position, pod) in pods.iter().take(MAX_PENDING).enumerate() {
            let is_small = names.len() <= STEP;
            views.push(if position >= MAX_EXPLAINED {
                view::pending(pod, None)
            } else if is_small {
                let explanation = self.index.step(|index| Explanation::of(index, pod));
                view::pending(pod, Some(explanation))
            } else if pod.claims.is_empty() {
                view::refused(pod, self.reasons(pod, &names).await, names.len())
            } else {
                // Allocating its claims on each of so many nodes would delay binds.
                view::pending(pod, None)
            });
            yield_now().await;
        }
        views
    }

    /// Number of nodes by reason against the pod. Binds run between its steps.
    async fn reasons(&self, pod: &PodFacts, names: &[String]) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        // A gang is planned over all nodes at once, so it takes one step.
        let step = if pod.gang.is_some() { names.len().max(1) } else { STEP };
        for step in names.chunks(step) {
            for reason in self.index.step(|index| reasons(index, pod, step)) {
                *counts.entry(reason).or_default() += 1;
            }
            yield_now().await;
        }
        counts
    }
}
