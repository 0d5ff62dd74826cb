//! The outlet to one next stage: chooses a replica for each item, and has custody of the item until it is passed.
//!
//! One task owns all streams to the next stage. It accepts an item only after it has sent the previous one, so a next
//! stage without capacity applies back-pressure. When a stream ends, each item that was not passed becomes a failure
//! that names the replica. The failure goes to another replica, so that later joins and the listeners get it.

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
    address::{Addresses, ResolvedAddress},
    dial::{self, ItemStream},
    failure::FailureKind,
    item::Outgoing,
    metrics::StageMetrics,
    replicas::Replicas,
    settings::{Identity, Settings},
    wire::{self, receipt::Content},
};

use link::Link;

/// Handle by which workers send items.
#[derive(Clone, Debug)]
pub(crate) struct Outlet {
    requests: mpsc::Sender<Outgoing>,
}

/// The task that owns the streams to one next stage.
pub(crate) struct OutletTask {
    next: String,
    identity: Identity,
    settings: Settings,
    metrics: StageMetrics,
    /// Zero of the clock whose times are sent with items.
    clock: Instant,
    requests: mpsc::Receiver<Outgoing>,
    /// True while a handle exists.
    has_senders: bool,
    /// Items that wait for a replica with capacity: failures of lost streams first, then at most one new item.
    waiting: VecDeque<Outgoing>,
    /// Cancelled when this stage starts to drain.
    draining: CancellationToken,
    replicas: Replicas<ItemStream>,
    links: BTreeMap<ResolvedAddress, Link>,
    receipts: StreamMap<ResolvedAddress, ReceiptStream>,
}

/// Receipts of one stream, then `None` at its end.
type ReceiptStream = std::pin::Pin<Box<dyn tokio_stream::Stream<Item = Option<Content>> + Send>>;

/// Time that this stage waits for its own shutdown signal after all replicas of the next stage have started to drain.
const DRAIN_GRACE: Duration = Duration::from_millis(500);

/// Interval between the pings of a stream: a few pings per span of `link_time`.
const PING_INTERVAL: Duration = Duration::from_secs(3);

// === impl Outlet ===

impl Outlet {
    /// Makes the handle and the task. The task ends when all handles are dropped and all items are passed.
    pub(crate) fn new(
        identity: Identity,
        next: &str,
        addresses: Addresses,
        settings: Settings,
        metrics: StageMetrics,
        draining: CancellationToken,
    ) -> (Self, OutletTask) {
        let (requests, receiver) = mpsc::channel(1);
        let clock = Instant::now();
        let name = next.to_owned();
        let dial = move |target: ResolvedAddress| {
            let name = name.clone();
            async move { dial::open(&target, &name, clock).await }
        };
        let task = OutletTask {
            next: next.to_owned(),
            identity,
            replicas: Replicas::new(next.to_owned(), addresses, settings.resolve_interval, dial),
            settings,
            metrics,
            draining,
            clock,
            requests: receiver,
            has_senders: true,
            waiting: VecDeque::new(),
            links: BTreeMap::new(),
            receipts: StreamMap::new(),
        };
        (Self { requests }, task)
    }

    /// Sends an item. Waits until the task has sent the previous item.
    pub(crate) async fn send(&self, outgoing: Outgoing) {
        // The task outlives its handles, except in a stage that is dropped with its items.
        drop(self.requests.send(outgoing).await);
    }
}

// === impl OutletTask ===

impl OutletTask {
    pub(crate) async fn run(mut self) {
        let mut pings = interval_at(self.clock + PING_INTERVAL, PING_INTERVAL);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.close_draining(Instant::now());
            self.send_waiting();
            if self.is_done() {
                break;
            }
            self.step(&mut pings).await;
        }
    }

    /// True if all handles are dropped and all items are passed.
    fn is_done(&self) -> bool {
        !self.has_senders && self.waiting.is_empty() && self.links.values().all(Link::is_idle)
    }

    async fn step(&mut self, pings: &mut Interval) {
        let expiry = self.waiting.front().and_then(|head| head.item.deadline);
        let draining_since = self.links.values().filter_map(Link::draining_since).min();
        let (is_draining, grace_end) =
            (self.draining.is_cancelled(), draining_since.map(|since| since + DRAIN_GRACE));
        tokio::select! {
            Some((target, receipt)) = self.receipts.next(), if !self.receipts.is_empty() => {
                self.on_receipt(&target, receipt);
            }
            outgoing = self.requests.recv(), if self.has_senders && self.waiting.is_empty() => {
                match outgoing {
                    Some(outgoing) => self.waiting.push_back(outgoing),
                    None => self.has_senders = false,
                }
            }
            (target, stream) = self.replicas.next_opened() => self.open(target, stream),
            () = sleep_until(expiry.unwrap_or(self.clock)), if expiry.is_some() => self.expire(),
            () = sleep_until(grace_end.unwrap_or(self.clock)),
                if grace_end.is_some() && !is_draining => {}
            () = self.draining.cancelled(), if !is_draining => {}
            _ = pings.tick() => self.links.values().for_each(|link| link.send_ping(self.clock)),
        }
    }

    fn open(&mut self, target: ResolvedAddress, stream: ItemStream) {
        let receipts = stream.receipts;
        self.receipts.insert(target.clone(), receipt_contents(receipts));
        let link = Link::new(stream.description, stream.parcels, stream.half_round_trip);
        self.links.insert(target, link);
        self.metrics.set_connected(&self.next, self.links.len());
    }

    fn on_receipt(&mut self, target: &ResolvedAddress, receipt: Option<Content>) {
        let Some(link) = self.links.get_mut(target) else { return };
        match receipt {
            Some(Content::Taken(taken)) => link.on_taken(taken.sequence, taken.held_ns),
            Some(Content::Passed(passed)) => link.on_passed(passed.sequence),
            Some(Content::Pong(pong)) => link.on_pong(pong.sent_ns, self.clock),
            Some(Content::Closing(_)) => {
                info!(stage = %self.next, replica = %link.replica(), "the replica drains");
                link.set_draining(Instant::now());
            }
            None => self.on_stream_ended(target),
        }
    }

    /// Closes the streams to draining replicas once another replica is open, or after [`DRAIN_GRACE`].
    ///
    /// A next stage in the same pod drains at the same time as this stage, and has no other replica. This stage keeps
    /// sending to it until its own drain is done. The next stage can announce its drain before this stage gets its own
    /// signal, hence the grace period.
    fn close_draining(&mut self, now: Instant) {
        let has_others = self.links.values().any(Link::is_open);
        let is_draining = self.draining.is_cancelled();
        for link in self.links.values_mut() {
            let Some(since) = link.draining_since() else { continue };
            if has_others || !is_draining && now >= since + DRAIN_GRACE {
                link.close();
            }
        }
    }

    /// Handles the end of a stream. Items that were not passed become failures, and are sent first.
    fn on_stream_ended(&mut self, target: &ResolvedAddress) {
        self.receipts.remove(target);
        self.replicas.on_ended(target);
        let Some(link) = self.links.remove(target) else { return };
        self.metrics.set_connected(&self.next, self.links.len());
        let replica = link.replica().to_owned();
        let mut unpassed = link.into_unpassed();
        for outgoing in &mut unpassed {
            let failure = || {
                self.metrics.count_failure(FailureKind::Stopped);
                let reason = "the stage stopped while it had the item".to_owned();
                let peer =
                    Identity { stage: self.next.as_str().into(), replica: replica.as_str().into() };
                peer.failure(FailureKind::Stopped, reason)
            };
            outgoing.item.fail(failure);
        }
        if unpassed.is_empty() {
            debug!(stage = %self.next, %replica, "stream ended");
        } else {
            warn!(stage = %self.next, %replica, items = unpassed.len(), "a stage stopped while it had items");
        }
        for outgoing in unpassed.into_iter().rev() {
            self.waiting.push_front(outgoing);
        }
    }

    /// Sends waiting items while a replica has capacity for the first one.
    fn send_waiting(&mut self) {
        let use_draining = self.draining.is_cancelled();
        while let Some(head) = self.waiting.front_mut() {
            let (settings, size) = (&self.settings, head.item.payload_bytes());
            let has_capacity = |link: &Link| {
                // An item over the limit becomes a failure, and is sent without its payload.
                let is_too_large = size > link.max_payload(settings.max_payload);
                link.has_capacity(settings, if is_too_large { 0 } else { size })
            };
            let Some(target) =
                choice::choose_replica(&self.links, head.item.id, use_draining, has_capacity)
            else {
                return;
            };
            let Some(link) = self.links.get_mut(&target) else { return };
            let limit = link.max_payload(settings.max_payload);
            if size > limit {
                head.item.fail(|| {
                    self.metrics.count_failure(FailureKind::TooLarge);
                    self.identity.failure(FailureKind::TooLarge, too_large(size, limit))
                });
            }
            let Some(head) = self.waiting.pop_front() else { return };
            self.metrics.record_sending(head.ready.elapsed());
            link.send(head, self.clock);
        }
    }

    /// Fails the first item, whose deadline has passed. It continues to wait, as a failure.
    fn expire(&mut self) {
        let Some(head) = self.waiting.front_mut() else { return };
        head.item.deadline = None;
        head.item.fail(|| {
            self.metrics.count_failure(FailureKind::Deadline);
            let reason = format!("deadline passed on the way to {}", self.next);
            self.identity.failure(FailureKind::Deadline, reason)
        });
    }
}

fn receipt_contents(receipts: Streaming<wire::Receipt>) -> ReceiptStream {
    let contents = receipts.filter_map(|receipt| match receipt {
        // A receipt type of a newer peer.
        Ok(wire::Receipt { content: None }) => None,
        Ok(wire::Receipt { content }) => Some(content),
        Err(_) => Some(None),
    });
    Box::pin(contents.chain(tokio_stream::once(None)))
}

/// Reason of a failure for a payload over the limit, in MiB where the numbers allow it.
fn too_large(size: usize, limit: usize) -> String {
    const MIB: usize = 1024 * 1024;
    if size.div_ceil(MIB) > limit / MIB && limit.is_multiple_of(MIB) && limit > 0 {
        format!("is {} MiB, the limit is {} MiB", size.div_ceil(MIB), limit / MIB)
    } else {
        format!("is {size} bytes, the limit is {limit} bytes")
    }
}
