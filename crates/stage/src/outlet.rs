//! The way to one next stage: chooses a replica for each item, and answers for the item until it is passed on.
//!
//! One task owns all streams to the next stage. It takes an item only when the previous one has left, so a next stage
//! without room holds this one back. When a stream ends, each item that was not passed becomes a failure that names the
//! replica, and goes to another one: the next stages and the end learn of it.

mod choice;
mod link;

use std::collections::{BTreeMap, VecDeque};

use tokio::{
    sync::mpsc,
    time::{Duration, Instant, Interval, MissedTickBehavior, interval_at, sleep_until},
};
use tokio_stream::{StreamExt as _, StreamMap};
use tokio_util::sync::CancellationToken;
use tonic::Streaming;
use tracing::{debug, info, warn};

use crate::{
    address::{Addresses, Target},
    dial::{self, Opened},
    failure::FailureKind,
    item::Outgoing,
    metrics::StageMetrics,
    replicas::Replicas,
    settings::{Identity, Settings},
    wire::{self, receipt::Content},
};

use link::Link;

/// Handle by which workers give items away.
#[derive(Clone, Debug)]
pub(crate) struct Outlet {
    requests: mpsc::Sender<Outgoing>,
}

/// The task that owns the streams to one next stage.
pub(crate) struct Carrier {
    next: String,
    identity: Identity,
    settings: Settings,
    metrics: StageMetrics,
    /// Zero of the clock that goes along with items.
    clock: Instant,
    requests: mpsc::Receiver<Outgoing>,
    is_fed: bool,
    /// Items that wait for a replica with room: failures of lost streams, then the newest item.
    waiting: VecDeque<Outgoing>,
    /// Cancelled when this stage drains itself.
    draining: CancellationToken,
    replicas: Replicas<Opened>,
    links: BTreeMap<Target, Link>,
    receipts: StreamMap<Target, Events>,
}

/// Receipts of one stream, and `None` at its end.
type Events = std::pin::Pin<Box<dyn tokio_stream::Stream<Item = Option<Content>> + Send>>;

/// Time that a stage waits for its own signal when the only replica of the next stage drains.
const ALONE: Duration = Duration::from_millis(500);

/// Pause between two pings of a stream, a few of which are in each span of `link_time`.
const PING_EVERY: Duration = Duration::from_secs(3);

// === impl Outlet ===

impl Outlet {
    /// The handle and the task. The task ends when all handles are gone and everything was passed on.
    pub(crate) fn new(
        identity: Identity,
        next: &str,
        addresses: Addresses,
        settings: Settings,
        metrics: StageMetrics,
        draining: CancellationToken,
    ) -> (Self, Carrier) {
        let (requests, receiver) = mpsc::channel(1);
        let clock = Instant::now();
        let name = next.to_owned();
        let dial = move |target: Target| {
            let name = name.clone();
            async move { dial::open(&target, &name, clock).await }
        };
        let carrier = Carrier {
            next: next.to_owned(),
            identity,
            replicas: Replicas::new(next.to_owned(), addresses, settings.resolve_every, dial),
            settings,
            metrics,
            draining,
            clock,
            requests: receiver,
            is_fed: true,
            waiting: VecDeque::new(),
            links: BTreeMap::new(),
            receipts: StreamMap::new(),
        };
        (Self { requests }, carrier)
    }

    /// Gives an item away, when the one before has left.
    pub(crate) async fn send(&self, outgoing: Outgoing) {
        // The task ends after its handles; only a stage that is dropped loses it earlier, with its items.
        drop(self.requests.send(outgoing).await);
    }
}

// === impl Carrier ===

impl Carrier {
    pub(crate) async fn run(mut self) {
        let mut pings = interval_at(self.clock + PING_EVERY, PING_EVERY);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.close_drained(Instant::now());
            self.place();
            if self.is_done() {
                break;
            }
            self.step(&mut pings).await;
        }
    }

    /// True if nothing is left to do, ever.
    fn is_done(&self) -> bool {
        !self.is_fed && self.waiting.is_empty() && self.links.values().all(Link::is_idle)
    }

    async fn step(&mut self, pings: &mut Interval) {
        let late = self.waiting.front().and_then(|head| head.item.deadline);
        let drained = self.links.values().filter_map(Link::draining_since).min();
        let (is_draining, alone) =
            (self.draining.is_cancelled(), drained.map(|since| since + ALONE));
        tokio::select! {
            Some((target, receipt)) = self.receipts.next(), if !self.receipts.is_empty() => {
                self.receive(&target, receipt);
            }
            outgoing = self.requests.recv(), if self.is_fed && self.waiting.is_empty() => {
                match outgoing {
                    Some(outgoing) => self.waiting.push_back(outgoing),
                    None => self.is_fed = false,
                }
            }
            (target, opened) = self.replicas.opened() => self.open(target, opened),
            () = sleep_until(late.unwrap_or(self.clock)), if late.is_some() => self.expire(),
            () = sleep_until(alone.unwrap_or(self.clock)), if alone.is_some() && !is_draining => {}
            () = self.draining.cancelled(), if !is_draining => {}
            _ = pings.tick() => self.links.values().for_each(|link| link.ping(self.clock)),
        }
    }

    fn open(&mut self, target: Target, opened: Opened) {
        let receipts = opened.receipts;
        self.receipts.insert(target.clone(), events(receipts));
        let link = Link::new(opened.description, opened.parcels, opened.half_round_trip);
        self.links.insert(target, link);
        self.metrics.connected(&self.next, self.links.len());
    }

    fn receive(&mut self, target: &Target, receipt: Option<Content>) {
        let Some(link) = self.links.get_mut(target) else { return };
        match receipt {
            Some(Content::Taken(taken)) => link.taken(taken.sequence, taken.held_ns),
            Some(Content::Passed(passed)) => link.passed(passed.sequence),
            Some(Content::Pong(pong)) => link.pong(pong.sent_ns, self.clock),
            Some(Content::Closing(_)) => {
                info!(stage = %self.next, replica = %link.replica(), "the replica drains");
                link.drains(Instant::now());
            }
            None => self.lose(target),
        }
    }

    /// Sends nothing more to replicas that drain, once others are there.
    ///
    /// A stage of the same pod drains at the same time as this one, and no other takes what this one still has: it is sent
    /// to until this one has finished. Such a stage may say so before this one hears its own signal.
    fn close_drained(&mut self, now: Instant) {
        let has_others = self.links.values().any(Link::is_open);
        let is_draining = self.draining.is_cancelled();
        for link in self.links.values_mut() {
            let Some(since) = link.draining_since() else { continue };
            if has_others || !is_draining && now >= since + ALONE {
                link.close();
            }
        }
    }

    /// A stream has ended. Items that it did not pass become failures, which go first.
    fn lose(&mut self, target: &Target) {
        self.receipts.remove(target);
        self.replicas.ended(target);
        let Some(link) = self.links.remove(target) else { return };
        self.metrics.connected(&self.next, self.links.len());
        let replica = link.replica().to_owned();
        let mut lost = link.unpassed();
        for outgoing in &mut lost {
            let failure = || {
                self.metrics.failure(FailureKind::Stopped);
                let reason = "the stage stopped while it had the item".to_owned();
                let peer =
                    Identity { stage: self.next.as_str().into(), replica: replica.as_str().into() };
                peer.failure(FailureKind::Stopped, reason)
            };
            outgoing.item.fail(failure);
        }
        if lost.is_empty() {
            debug!(stage = %self.next, %replica, "stream ended");
        } else {
            warn!(stage = %self.next, %replica, items = lost.len(), "a stage stopped while it had items");
        }
        for outgoing in lost.into_iter().rev() {
            self.waiting.push_front(outgoing);
        }
    }

    /// Sends waiting items while a replica has room for the first.
    fn place(&mut self) {
        let last_resort = self.draining.is_cancelled();
        while let Some(head) = self.waiting.front_mut() {
            let (settings, size) = (&self.settings, head.item.payload_bytes());
            let has_room = |link: &Link| {
                // Too large an item goes as a failure, without its payload.
                let is_too_large = size > link.limit(settings.max_payload);
                link.has_room(settings, if is_too_large { 0 } else { size })
            };
            let Some(target) = choice::replica(&self.links, head.item.id, last_resort, has_room)
            else {
                return;
            };
            let Some(link) = self.links.get_mut(&target) else { return };
            let limit = link.limit(settings.max_payload);
            if size > limit {
                head.item.fail(|| {
                    self.metrics.failure(FailureKind::TooLarge);
                    self.identity.failure(FailureKind::TooLarge, too_large(size, limit))
                });
            }
            let Some(head) = self.waiting.pop_front() else { return };
            self.metrics.sending(head.ready.elapsed());
            link.send(head, self.clock);
        }
    }

    /// Fails the head, whose deadline has passed. It goes on waiting, as a failure.
    fn expire(&mut self) {
        let Some(head) = self.waiting.front_mut() else { return };
        head.item.deadline = None;
        head.item.fail(|| {
            self.metrics.failure(FailureKind::Deadline);
            let reason = format!("deadline passed on the way to {}", self.next);
            self.identity.failure(FailureKind::Deadline, reason)
        });
    }
}

fn events(receipts: Streaming<wire::Receipt>) -> Events {
    let contents = receipts.filter_map(|receipt| match receipt {
        // A receipt of a newer peer.
        Ok(wire::Receipt { content: None }) => None,
        Ok(wire::Receipt { content }) => Some(content),
        Err(_) => Some(None),
    });
    Box::pin(contents.chain(tokio_stream::once(None)))
}

/// Sizes as people write them.
fn too_large(size: usize, limit: usize) -> String {
    const MIB: usize = 1024 * 1024;
    if size.div_ceil(MIB) > limit / MIB && limit.is_multiple_of(MIB) && limit > 0 {
        format!("is {} MiB, the limit is {} MiB", size.div_ceil(MIB), limit / MIB)
    } else {
        format!("is {size} bytes, the limit is {limit} bytes")
    }
}
