//! Reads the kubelet's record for all who need to know what containers have.
//!
//! ```text
//!   ┌──────┐ somebody follows, or claims may have devices ┌───────────┐
//!   │ idle │ ───────────────────────────────────────────> │ following │ reads at each write of the kubelet, each look
//!   └──────┘ <─────────────────────────────────────────── └───────────┘ and each new follower, and publishes
//!                          neither                              │  ^
//!                                                 asks the kubelet  answer: publishes again
//!                                                               v  │
//!                                                          pod resources
//! ```
//!
//! The ledger takes what is read for as long as claims may have devices.

mod allocations;
mod record;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;
use windlass_config::{DraOffer, Places, Policy, SessionLimits};
use windlass_core::{device::DeviceId, resource::ResourceName};
use windlass_host::{causes, deadline::Deadline, watch::changed};
use windlass_kubelet_api::{checkpoint, deviceplugin};

pub use self::allocations::{Allocations, AllocationsDesk, Following};
use self::{
    allocations::{Record, still_held},
    record::RecordReader,
};
use crate::{
    ledger::{LedgerDesk, Recorded},
    podresources::HoldersDesk,
};

/// Reads the kubelet's record, and publishes what containers have.
#[derive(Debug)]
pub struct Follower<S> {
    ledger: LedgerDesk,
    sources: Sources<S>,
    reader: RecordReader,
    /// How long after an Allocate the record may lack it.
    delay: Duration,
    look_interval: Duration,
    /// By then the record has what an agent before this one gave away last; `None` once it has.
    doubt: Option<Deadline>,
    /// When the record was last read.
    looked: Option<Instant>,
    record: Option<Record>,
    /// Why the record could not be read when it was last tried.
    unreadable: Option<String>,
    /// The review of the last record, at most one: the kubelet may have to be asked at a better moment.
    reviewing: JoinSet<()>,
    wake: Arc<Notify>,
    followers: watch::Sender<()>,
    publish: watch::Sender<Arc<Allocations>>,
}

/// The follower's inputs.
#[derive(Debug)]
pub struct Sources<S> {
    /// The policy, which says whether claims may have devices.
    pub policy: watch::Receiver<Arc<Policy>>,
    /// The node, which says what tokens stand for.
    pub state: watch::Receiver<Arc<S>>,
    /// The devices of a pool; `None` before the node is known.
    pub devices_of_pool: fn(&S, &ResourceName) -> Option<BTreeSet<DeviceId>>,
    /// Counts the changes of the folder in which the kubelet keeps its record.
    pub kubelet_writes: watch::Receiver<u64>,
    /// How long the record may lack what an agent before this one gave away last.
    pub doubt: Duration,
    /// The containers that hold devices, as the kubelet tells when asked.
    pub holders: HoldersDesk,
}

// === impl Follower ===

impl<S> Follower<S> {
    /// A follower that feeds this ledger, and the way to what it reads.
    pub fn new(
        places: &Places,
        limits: SessionLimits,
        ledger: LedgerDesk,
        sources: Sources<S>,
    ) -> (Self, AllocationsDesk) {
        let plugins = places.kubelet_dir.join(deviceplugin::PLUGIN_DIR);
        let (publish, newest) = watch::channel(Arc::default());
        let (followers, wake) = (watch::Sender::new(()), Arc::default());
        let desk = AllocationsDesk::new(followers.clone(), Arc::clone(&wake), newest);
        let follower = Self {
            ledger,
            reader: RecordReader::new(plugins.join(checkpoint::FILE)),
            delay: limits.handover,
            look_interval: limits.look_interval,
            doubt: (!sources.doubt.is_zero()).then(|| Deadline::after(sources.doubt)),
            sources,
            looked: None,
            record: None,
            unreadable: None,
            reviewing: JoinSet::new(),
            wake,
            followers,
            publish,
        };
        (follower, desk)
    }

    /// Follows the record until stopped.
    pub async fn run(mut self, stop: CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.live() => {}
        }
    }

    async fn live(&mut self) {
        loop {
            let feeds_ledger = self.feeds_ledger();
            if !feeds_ledger {
                self.ledger.forget_record();
            }
            let is_followed = feeds_ledger || self.followers.receiver_count() > 0;
            if is_followed {
                self.read().await;
            } else {
                self.looked = None;
            }
            self.wait(is_followed).await;
        }
    }

    /// Waits for a reason to read the record.
    async fn wait(&mut self, is_followed: bool) {
        loop {
            let lacks_pools = self.feeds_ledger() && !self.ledger.watch().borrow().is_complete();
            tokio::select! {
                () = self.wake.notified() => return,
                () = changed(&mut self.sources.policy) => return,
                () = changed(&mut self.sources.kubelet_writes) => return,
                () = changed(&mut self.sources.state), if lacks_pools => return,
                () = passed(&mut self.doubt) => return self.doubt = None,
                () = sleep(self.look_interval), if is_followed => return,
                Some(_) = self.reviewing.join_next() => self.tell(),
            }
        }
    }

    /// Claims may have devices, or have some still, and the record is believed: the last Allocates of an agent before
    /// this one are in it by then.
    fn feeds_ledger(&self) -> bool {
        let is_offered = self.sources.policy.borrow().dra.offer != DraOffer::Off;
        let is_wanted = is_offered || !self.ledger.watch().borrow().claims().is_empty();
        is_wanted && self.doubt.is_none()
    }

    async fn read(&mut self) {
        let begun = Instant::now();
        let before = self.looked.replace(begun).unwrap_or(begun);
        // Looks are no farther apart where the agent runs.
        let stopped = (begun - before).saturating_sub(self.look_interval * 2);
        if !stopped.is_zero() {
            self.ledger.was_stopped(stopped);
        }
        let (record, unreadable) = match self.reader.read().await {
            Ok(checkpoint) => (Some(Record::of(checkpoint)), None),
            Err(error) => (None, Some(causes(&error))),
        };
        self.record = record;
        self.say(unreadable);
        self.tell();
        let held = self.record.as_ref().map(|record| record.held.clone()).unwrap_or_default();
        if !held.is_empty() && self.reviewing.is_empty() {
            let (holders, look_interval) = (self.sources.holders.clone(), self.look_interval);
            self.reviewing.spawn(async move { holders.review(held, look_interval).await });
        }
    }

    /// Publishes what is held of what was read last.
    fn tell(&mut self) {
        let holders = self.sources.holders.holders().borrow().clone();
        let ledger = self.ledger.watch();
        let now = (Instant::now(), self.look_interval);
        let record = self.record.as_ref();
        let record =
            record.map(|record| still_held(record.clone(), &holders, &ledger.borrow(), now));
        if let Some(still) = record.as_ref().filter(|_| self.feeds_ledger()) {
            self.feed(Recorded::of(&still.held));
        }
        let news = Allocations::new(self.looked, record);
        self.publish.send_replace(Arc::new(news));
    }

    /// Enters into the ledger what is held still. All that is recorded counts until the kubelet was asked.
    fn feed(&self, still: Recorded) {
        let recorded = match &self.record {
            Some(record) if !self.ledger.watch().borrow().is_complete() => {
                self.with_devices_of_pools(Recorded::of(&record.held))
            }
            _ => Some(still),
        };
        if let Some((recorded, read)) = recorded.zip(self.looked) {
            self.ledger.recorded(&recorded, (read, self.delay));
        }
    }

    /// Tokens that an earlier life of the agent gave stand for every device of their pool; `None` before
    /// the node is known.
    fn with_devices_of_pools(&self, mut recorded: Recorded) -> Option<Recorded> {
        let state = self.sources.state.borrow().clone();
        for pool in &recorded.pools {
            let devices = (self.sources.devices_of_pool)(&state, pool)?.into_iter();
            recorded.devices.extend(devices.map(|device| (device, pool.clone())));
        }
        Some(recorded)
    }

    /// Says once why nobody knows what containers have.
    fn say(&mut self, unreadable: Option<String>) {
        if let Some(why) = unreadable.as_ref().filter(|_| unreadable != self.unreadable) {
            let path = self.reader.path().display();
            tracing::warn!(%path, why, "cannot read which devices containers hold");
        }
        self.unreadable = unreadable;
    }
}

/// Waits for a deadline; for ever without one.
async fn passed(deadline: &mut Option<Deadline>) {
    match deadline {
        Some(deadline) => deadline.passed().await,
        None => std::future::pending().await,
    }
}
