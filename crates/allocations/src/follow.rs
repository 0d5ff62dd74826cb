//! Reads the kubelet's record into the ledger, for as long as claims may have devices.
//!
//! ```text
//!   idle ──devices are offered to claims──> reading ──record read──> known ──┐
//!    ^                                                                ^──────┘ each write of the kubelet,
//!    └───────── no longer, and no claim has any ──────────────────────┘        and each look
//! ```

mod sights;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;
use windlass_config::{DraOffer, Places, Policy, SessionLimits};
use windlass_core::{device::DeviceId, resource::ResourceName};
use windlass_host::{causes, deadline::Deadline, watch::changed};
use windlass_kubelet_api::{checkpoint, deviceplugin};

use self::sights::still_held;
use crate::{
    ledger::{LedgerDesk, Recorded},
    podresources::{self, HoldersDesk, RecordReader},
};

/// Keeps the ledger's account of containers.
#[derive(Debug)]
pub struct Follower<S> {
    ledger: LedgerDesk,
    sources: Sources<S>,
    reader: RecordReader,
    /// How long after an Allocate the record may lack it.
    delay: Duration,
    look_interval: Duration,
    /// When it was last looked.
    looked: Option<Instant>,
    /// Why the record could not be read when it was last tried.
    unreadable: Option<String>,
}

/// What is read.
#[derive(Debug)]
pub struct Sources<S> {
    /// What is wanted of the devices.
    pub policy: watch::Receiver<Arc<Policy>>,
    /// The node, which says what tokens stand for.
    pub state: watch::Receiver<Arc<S>>,
    /// The devices of a pool; `None` before the node is known.
    pub devices_of_pool: fn(&S, &ResourceName) -> Option<BTreeSet<DeviceId>>,
    /// Counts the changes of the folder in which the kubelet keeps its record.
    pub kubelet_writes: watch::Receiver<u64>,
    /// How long the record may lack what an agent before this one gave away last.
    pub doubt: Duration,
    /// Who holds what, as the kubelet tells when asked.
    pub holders: HoldersDesk,
}

// === impl Follower ===

impl<S> Follower<S> {
    /// A follower that keeps this ledger.
    pub fn new(
        places: &Places,
        limits: SessionLimits,
        ledger: LedgerDesk,
        sources: Sources<S>,
    ) -> Self {
        let plugins = places.kubelet_dir.join(deviceplugin::PLUGIN_DIR);
        Self {
            ledger,
            sources,
            reader: RecordReader::new(plugins.join(checkpoint::FILE)),
            delay: limits.handover,
            look_interval: limits.look_interval,
            looked: None,
            unreadable: None,
        }
    }

    /// Follows the record until stopped. What an agent before this one gave away last the record has by the
    /// time it is first believed; where none has, it is believed at once.
    pub async fn run(mut self, stop: CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.live() => {}
        }
    }

    async fn live(&mut self) {
        Deadline::after(self.sources.doubt).passed().await;
        loop {
            if !self.is_wanted() {
                self.ledger.forget_record();
                changed(&mut self.sources.policy).await;
                continue;
            }
            self.look().await;
            let is_known = self.ledger.watch().borrow().is_complete();
            tokio::select! {
                () = changed(&mut self.sources.policy) => {}
                () = changed(&mut self.sources.kubelet_writes) => {}
                () = changed(&mut self.sources.state), if !is_known => {}
                () = sleep(self.look_interval) => {}
            }
        }
    }

    /// Whether claims may have devices, or have some still.
    fn is_wanted(&self) -> bool {
        let is_offered = self.sources.policy.borrow().dra.offer != DraOffer::Off;
        is_offered || !self.ledger.watch().borrow().claims().is_empty()
    }

    async fn look(&mut self) {
        let begun = Instant::now();
        let before = self.looked.replace(begun).unwrap_or(begun);
        // Looks are no farther apart where the agent runs.
        let stopped = (begun - before).saturating_sub(self.look_interval * 2);
        if !stopped.is_zero() {
            self.ledger.was_stopped(stopped);
        }
        let record = match self.reader.read().await {
            Ok(record) => podresources::held(&record),
            Err(error) => return self.say(causes(&error)),
        };
        self.unreadable = None;
        if !self.ledger.watch().borrow().is_complete() {
            // All that is recorded counts until the kubelet was asked.
            let Some(recorded) = self.with_devices_of_pools(Recorded::of(&record)) else { return };
            self.ledger.recorded(&recorded, (begun, self.delay));
        }
        if !record.is_empty() {
            self.sources.holders.review(record.clone(), self.look_interval).await;
        }
        let told = self.sources.holders.holders().borrow().clone();
        let ledger = self.ledger.watch().borrow().clone();
        let still = still_held(record, &told, &ledger, (begun, self.look_interval));
        self.ledger.recorded(&Recorded::of(&still), (begun, self.delay));
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
    fn say(&mut self, why: String) {
        if self.unreadable.as_ref() != Some(&why) {
            let path = self.reader.path().display();
            tracing::warn!(%path, why, "cannot tell claims what containers hold");
        }
        self.unreadable = Some(why);
    }
}
