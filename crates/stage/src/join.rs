//! The join of a stage: waits for one part of an item from each stage before, and makes one item of them.
//!
//! ```text
//!            (first part)            (last part)
//!  unknown ───────────────> waiting ─────────────> queue
//!                             │ │
//!                             │ └──(a part is a failure)──> queue, as that failure
//!                             └──(no more came in time)───> queue, as a failure
//! ```
//!
//! The table of waiting items is bounded. A part that would begin another item waits for room, with the stream that it
//! came on: the stream that is ahead is held back, while the others complete items.

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
    seen::Seen,
    settings::{Identity, Settings},
    visit::Visit,
};

/// One part of an item, from one stage.
pub(crate) struct Part {
    pub(crate) from: String,
    pub(crate) item: Queued,
    /// Answered when the part is in the table.
    pub(crate) accept: oneshot::Sender<()>,
}

/// The task that owns the parts.
pub(crate) struct Join {
    pub(crate) from: Vec<String>,
    pub(crate) identity: Identity,
    pub(crate) settings: Settings,
    pub(crate) metrics: StageMetrics,
    pub(crate) parts: mpsc::Receiver<Part>,
    pub(crate) room: Arc<Semaphore>,
    pub(crate) arrivals: mpsc::UnboundedSender<Queued>,
    pub(crate) table: Table,
}

/// Items of which some parts came.
#[derive(Default)]
pub(crate) struct Table {
    waiting: HashMap<u64, Waiting>,
    /// Ids by their first part, with the time at which they are given up.
    due: VecDeque<(Instant, u64)>,
    /// Parts that wait for room in the table.
    held: VecDeque<Part>,
    done: Seen,
}

/// One item of which some parts came.
struct Waiting {
    /// The payload of each part, in the order of the stages before.
    parts: Vec<Option<Bytes>>,
    /// The parts' times, visits and custodies, put together.
    item: Queued,
}

// === impl Join ===

impl Join {
    /// Runs until no more parts can come and none waits.
    pub(crate) async fn run(mut self, finish: impl Future<Output = ()>) {
        let mut finish = std::pin::pin!(finish);
        let (mut is_finishing, mut is_open) = (false, true);
        while is_open || !self.table.waiting.is_empty() {
            let due = self.table.due.front().map(|(at, _)| *at);
            tokio::select! {
                // A part that is there comes before the end of the wait for it.
                biased;
                () = &mut finish, if !is_finishing => {
                    is_finishing = true;
                    self.parts.close();
                }
                part = self.parts.recv(), if is_open => match part {
                    Some(part) => self.take(part).await,
                    None => is_open = false,
                },
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    self.give_up(Instant::now()).await;
                }
            }
            self.take_held().await;
        }
    }

    async fn take(&mut self, part: Part) {
        let id = part.item.id;
        let is_known = self.table.waiting.contains_key(&id) || self.table.done.contains(id);
        if !is_known && self.table.waiting.len() >= self.settings.join_capacity {
            self.table.held.push_back(part);
            return;
        }
        // A reader that is gone has no use for the answer; its part counts.
        let _ = part.accept.send(());
        if self.table.done.contains(id) {
            // The item went on without this part, as a failure.
            part.item.custodies.iter().for_each(Custody::settle);
        } else if let Some(complete) = self.add(&part.from, part.item) {
            self.pass_on(complete).await;
        }
    }

    /// Parts that waited for room, as far as there is some now.
    async fn take_held(&mut self) {
        for _ in 0..self.table.held.len() {
            let Some(part) = self.table.held.pop_front() else { return };
            // Goes back to the end if there is still no room.
            self.take(part).await;
        }
    }

    /// Adds a part; the item, if it is complete or has failed.
    fn add(&mut self, from: &str, mut item: Queued) -> Option<Queued> {
        let id = item.id;
        let place = self.from.iter().position(|stage| stage == from);
        let body = std::mem::replace(&mut item.parts, Ok(Vec::new()));
        let (mut parts, item) =
            if let Some(Waiting { parts, item: first }) = self.table.waiting.remove(&id) {
                (parts, first.merge(item))
            } else {
                self.table.due.push_back((Instant::now() + self.settings.join_timeout, id));
                (vec![None; self.from.len()], item)
            };
        let failure = match (body, place) {
            (Err(failure), _) => Some(failure),
            (Ok(_), None) => {
                Some(self.failure(format!("part from {from}, which is none of --from")))
            }
            (Ok(mut payloads), Some(place)) => {
                parts[place] = payloads.pop();
                None
            }
        };
        match failure {
            Some(failure) => Some(Queued { parts: Err(failure), ..item }),
            None if parts.iter().all(Option::is_some) => {
                Some(Queued { parts: Ok(parts.into_iter().flatten().collect()), ..item })
            }
            None => {
                self.table.waiting.insert(id, Waiting { parts, item });
                None
            }
        }
    }

    /// Fails items whose parts did not come in time.
    async fn give_up(&mut self, now: Instant) {
        while let Some(&(at, id)) = self.table.due.front()
            && at <= now
        {
            self.table.due.pop_front();
            let Some(Waiting { parts, item }) = self.table.waiting.remove(&id) else { continue };
            let missing = self.from.iter().zip(&parts).filter(|(_, part)| part.is_none());
            let missing: Vec<_> = missing.map(|(stage, _)| stage.as_str()).collect();
            let failure = self.failure(format!("part from {} did not come", missing.join(", ")));
            self.pass_on(Queued { parts: Err(failure), ..item }).await;
        }
    }

    async fn pass_on(&mut self, mut item: Queued) {
        self.table.done.is_first(item.id);
        let begun = Instant::now();
        // The semaphore is never closed.
        item.place = Arc::clone(&self.room).acquire_owned().await.ok();
        // No part was taken meanwhile: the time is not one in which parts did not come.
        let blocked = begun.elapsed();
        self.table.due.iter_mut().for_each(|(at, _)| *at += blocked);
        drop(self.arrivals.send(item));
    }

    fn failure(&self, reason: String) -> Failure {
        self.metrics.failure(FailureKind::Part);
        self.identity.failure(FailureKind::Part, reason)
    }
}

// === impl Queued ===

impl Queued {
    /// Puts times, visits and custodies of another part to this one. The item's time in this stage begins with the first
    /// part; its link is that of the last.
    fn merge(mut self, other: Self) -> Self {
        for visit in other.visits {
            // Stages before the split are in both parts.
            let is_same =
                |known: &Visit| (&known.stage, &known.replica) == (&visit.stage, &visit.replica);
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
