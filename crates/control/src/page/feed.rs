//! The board, kept from the index.

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

/// Least time between two looks at the index.
const LOOK_PAUSE: Duration = Duration::from_secs(1);
/// Time between two looks that nobody asks for: the history continues.
const UNWATCHED_PAUSE: Duration = Duration::from_secs(10);
/// Time between two explanations of the pending pods.
const EXPLAIN_PAUSE: Duration = Duration::from_secs(5);
/// Time after which unchanged nodes are read too: the forecast, by which fragmentation is computed, is another by then.
const FULL_PAUSE: Duration = Duration::from_secs(60);
/// Nodes of one step, in which nothing else sees the index: below a millisecond.
const STEP: usize = 200;
/// Pending pods that are explained, the oldest ones.
const MAX_EXPLAINED: usize = 20;
/// Pending pods that are listed.
const MAX_PENDING: usize = 500;
/// Most time for which a reader is held while nothing changes.
const HOLD: Duration = Duration::from_secs(20);
/// Readers that are held at a time. Others are answered at once, and ask again after two seconds.
const MAX_HELD: usize = 200;

/// The board of a cluster.
#[derive(Debug)]
pub(crate) struct Feed {
    index: Arc<Shared<Index>>,
    board: Shared<Board>,
    progress: Shared<Progress>,
    /// Looks at the index, one at a time.
    look: Semaphore,
    held: Semaphore,
    clock: Clock,
}

#[derive(Debug, Default)]
struct Progress {
    /// Change of the index up to which the board is.
    until: u64,
    looked: Option<Instant>,
    read_all: Option<Instant>,
    explained: Option<Instant>,
    pending: Vec<PendingPod>,
}

/// A look that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Look {
    /// Change of the index after which nodes are read.
    after: u64,
    /// The pending pods are explained too, if somebody reads.
    explains: bool,
}

// === impl Progress ===

impl Progress {
    /// The look that is due now.
    fn next(&mut self, now: Instant) -> Option<Look> {
        let is_due = |last: Option<Instant>, pause| last.is_none_or(|last| now - last >= pause);
        if !is_due(self.looked, LOOK_PAUSE) {
            return None;
        }
        if is_due(self.read_all, FULL_PAUSE) {
            (self.read_all, self.until) = (Some(now), 0);
        }
        Some(Look { after: self.until, explains: is_due(self.explained, EXPLAIN_PAUSE) })
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
            look: Semaphore::new(1),
            held: Semaphore::new(MAX_HELD),
            clock,
        }
    }

    /// Keeps the history while nobody looks. Ends with its future.
    pub(crate) async fn follow(&self) {
        loop {
            if self.is_ready() {
                self.refresh(false).await;
            }
            sleep(UNWATCHED_PAUSE).await;
        }
    }

    /// All objects have been seen once.
    pub(super) fn is_ready(&self) -> bool {
        self.index.step(|index| index.is_synced())
    }

    /// The document for a reader, as JSON that readers share: complete, or the changes after a revision. Waits for one.
    pub(super) async fn document(&self, after: Option<&str>, stop: &CancellationToken) -> Bytes {
        let until = Instant::now() + HOLD;
        let place = self.held.try_acquire();
        loop {
            self.refresh(true).await;
            let is_news = after
                .is_none_or(|after| self.board.step(|board| board.revision()).to_string() != after);
            if is_news || place.is_err() || Instant::now() >= until || stop.is_cancelled() {
                return self.board.step(|board| board.json(after));
            }
            let next = Instant::now() + LOOK_PAUSE;
            stop.run_until_cancelled(sleep_until(next.min(until))).await;
        }
    }

    /// Brings the board up to date, unless that was done a moment ago or is being done.
    async fn refresh(&self, explains: bool) {
        let Ok(_turn) = self.look.try_acquire() else { return };
        let Some(look) = self.progress.step(|progress| progress.next(Instant::now())) else {
            return;
        };
        let (changed, gone, until) = self.changes(look.after).await;
        let pending = if explains && look.explains { Some(self.pending().await) } else { None };
        let done = Instant::now();
        let pending = self.progress.step(|progress| {
            (progress.until, progress.looked) = (until, Some(done));
            if let Some(pending) = pending {
                (progress.pending, progress.explained) = (pending, Some(done));
            }
            progress.pending.clone()
        });
        let snapshot = Snapshot { changed, gone, pending, ..Snapshot::default() };
        let now = self.clock.now();
        self.board.step(|board| board.update(now, snapshot));
    }

    /// Nodes that have changed after a change of the index, those that are gone, and the newest change.
    async fn changes(&self, mut after: u64) -> (Vec<NodeView>, Vec<String>, u64) {
        let (mut views, mut gone) = (BTreeMap::new(), BTreeSet::new());
        loop {
            let (nodes, names, until) = self.index.step(|index| {
                let step = index.inspect_changed(after, STEP);
                // Others, such as those of the control plane, have nothing to show.
                let (with, without): (Vec<_>, Vec<_>) =
                    step.nodes.iter().partition(|node| !node.facts.gpus.is_empty());
                let nodes: Vec<_> = with.into_iter().map(view::node).collect();
                let without = without.into_iter().map(|node| node.facts.name.clone());
                (nodes, step.gone.into_iter().chain(without).collect::<Vec<_>>(), step.until)
            });
            if until == after {
                return (views.into_values().collect(), gone.into_iter().collect(), after);
            }
            // A node may go and come back between two steps: the last one counts.
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
                // An allocation on each of so many nodes would keep binds waiting.
                view::pending(pod, None)
            });
            yield_now().await;
        }
        views
    }

    /// Reasons with their numbers of nodes, from steps between which binds go on.
    async fn reasons(&self, pod: &PodFacts, names: &[String]) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        // A gang is planned over all nodes at once.
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
