//! The join of a stage: waits for one part of each item from every previous stage, and merges them into one item.
//!
//! ```text
//!            (first part)            (last part)
//!  unknown ───────────────> waiting ─────────────> queue
//!                             │ │
//!                             │ └──(a part is a failure)──> queue, as that failure
//!                             └──(join_timeout)───────────> queue, as a failure
//! ```
//!
//! The table of waiting items is bounded. When it is full, the first part of a new item blocks its stream. So the
//! stream that is ahead waits, while the others complete items.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use bytes::Bytes;
use tokio::{
    sync::{Semaphore, mpsc, oneshot},
    time::{Instant, sleep_until},
};

use crate::{
    custody::Custody,
    failure::{Failure, FailureKind},
    metrics::StageMetrics,
    queued::Queued,
    recent_ids::RecentIds,
    settings::{Identity, Settings},
    visit::Visit,
};

/// One part of an item, from one stage.
pub(crate) struct ItemPart {
    pub(crate) sender: String,
    pub(crate) item: Queued,
    /// Signalled when the part is admitted.
    pub(crate) accept: oneshot::Sender<()>,
}

/// The task that owns the table of parts.
pub(crate) struct Join {
    pub(crate) previous_stages: Vec<String>,
    pub(crate) identity: Identity,
    pub(crate) settings: Settings,
    pub(crate) metrics: StageMetrics,
    pub(crate) parts: mpsc::Receiver<ItemPart>,
    pub(crate) queue_slots: Arc<Semaphore>,
    pub(crate) arrivals: mpsc::UnboundedSender<Queued>,
    pub(crate) table: Table,
}

/// Items with missing parts.
#[derive(Default)]
pub(crate) struct Table {
    waiting: HashMap<u64, IncompleteItem>,
    /// Timeouts of the items, in the order of their first parts.
    timeouts: VecDeque<(Instant, u64)>,
    /// Parts that wait because the table is full.
    blocked: VecDeque<ItemPart>,
    /// Items that the join has passed to the queue.
    completed: RecentIds,
}

/// One item with missing parts.
struct IncompleteItem {
    /// Payloads by previous stage, in the order of `previous_stages`; `None` for a missing part.
    parts: Vec<Option<Bytes>>,
    /// Merged times, visits and custodies of the parts.
    item: Queued,
}

// === impl Join ===

impl Join {
    /// Runs until no more parts can arrive and the table is empty. `finish` closes the channel of parts.
    pub(crate) async fn run(mut self, finish: impl Future<Output = ()>) {
        let mut finish = std::pin::pin!(finish);
        let (mut is_finishing, mut is_open) = (false, true);
        while is_open || !self.table.waiting.is_empty() {
            let due = self.table.timeouts.front().map(|(at, _)| *at);
            tokio::select! {
                // Biased: a part that has arrived wins over its timeout.
                biased;
                () = &mut finish, if !is_finishing => {
                    is_finishing = true;
                    self.parts.close();
                }
                part = self.parts.recv(), if is_open => match part {
                    Some(part) => self.admit(part).await,
                    None => is_open = false,
                },
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    self.expire(Instant::now()).await;
                }
            }
            self.retry_blocked().await;
        }
    }

    /// Admits a part, or blocks it while the table is full.
    async fn admit(&mut self, part: ItemPart) {
        let id = part.item.id;
        let has_entry = self.table.waiting.contains_key(&id) || self.table.completed.contains(id);
        if !has_entry && self.table.waiting.len() >= self.settings.join_capacity {
            self.table.blocked.push_back(part);
            return;
        }
        // An error means that the reader has ended. Its part counts.
        let _ = part.accept.send(());
        if self.table.completed.contains(id) {
            // The item has already failed without this part.
            part.item.custodies.iter().for_each(Custody::settle);
        } else if let Some(complete) = self.add(&part.sender, part.item) {
            self.enqueue(complete).await;
        }
    }

    /// Retries blocked parts, each once. A part that still finds no space goes to the end.
    async fn retry_blocked(&mut self) {
        for _ in 0..self.table.blocked.len() {
            let Some(part) = self.table.blocked.pop_front() else { return };
            self.admit(part).await;
        }
    }

    /// Adds a part to the table. Returns the item if it is complete or has failed.
    fn add(&mut self, sender: &str, mut item: Queued) -> Option<Queued> {
        let id = item.id;
        let index = self.previous_stages.iter().position(|stage| stage == sender);
        let body = std::mem::replace(&mut item.parts, Ok(Vec::new()));
        let (mut parts, item) =
            if let Some(IncompleteItem { parts, item: first }) = self.table.waiting.remove(&id) {
                (parts, first.merge(item))
            } else {
                self.table.timeouts.push_back((Instant::now() + self.settings.join_timeout, id));
                (vec![None; self.previous_stages.len()], item)
            };
        let failure = match (body, index) {
            (Err(failure), _) => Some(failure),
            (Ok(_), None) => {
                Some(self.failure(format!("part from {sender}, which is none of --from")))
            }
            (Ok(mut payloads), Some(index)) => {
                parts[index] = payloads.pop();
                None
            }
        };
        match failure {
            Some(failure) => Some(Queued { parts: Err(failure), ..item }),
            None if parts.iter().all(Option::is_some) => {
                Some(Queued { parts: Ok(parts.into_iter().flatten().collect()), ..item })
            }
            None => {
                self.table.waiting.insert(id, IncompleteItem { parts, item });
                None
            }
        }
    }

    /// Fails the items whose `join_timeout` has passed.
    async fn expire(&mut self, now: Instant) {
        while let Some(&(at, id)) = self.table.timeouts.front()
            && at <= now
        {
            self.table.timeouts.pop_front();
            let Some(IncompleteItem { parts, item }) = self.table.waiting.remove(&id) else {
                continue;
            };
            let missing =
                self.previous_stages.iter().zip(&parts).filter(|(_, part)| part.is_none());
            let missing: Vec<_> = missing.map(|(stage, _)| stage.as_str()).collect();
            let failure = self.failure(format!("part from {} did not come", missing.join(", ")));
            self.enqueue(Queued { parts: Err(failure), ..item }).await;
        }
    }

    async fn enqueue(&mut self, mut item: Queued) {
        self.table.completed.insert(item.id);
        let started = Instant::now();
        // An error is impossible: the semaphore is never closed.
        item.slot = Arc::clone(&self.queue_slots).acquire_owned().await.ok();
        // No part was received during this wait, so it extends the timeouts.
        let blocked = started.elapsed();
        self.table.timeouts.iter_mut().for_each(|(at, _)| *at += blocked);
        drop(self.arrivals.send(item));
    }

    fn failure(&self, reason: String) -> Failure {
        self.metrics.count_failure(FailureKind::MissingPart);
        self.identity.failure(FailureKind::MissingPart, reason)
    }
}

// === impl Queued ===

impl Queued {
    /// Merges visits, custodies, deadline and link time of a later part. The arrival stays that of the first part; the
    /// link time is that of the last part.
    fn merge(mut self, other: Self) -> Self {
        for visit in other.visits {
            // Both parts contain the visits of the stages before the split.
            let is_same =
                |own: &Visit| (&own.stage, &own.replica) == (&visit.stage, &visit.replica);
            if !self.visits.iter().any(is_same) {
                self.visits.push(visit);
            }
        }
        self.custodies.extend(other.custodies);
        self.link = other.link;
        self.deadline = self.deadline.into_iter().chain(other.deadline).min();
        self
    }
}
