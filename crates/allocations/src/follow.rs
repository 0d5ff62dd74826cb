//! Follower of the kubelet's checkpoint: reads it, and publishes the containers' devices to all readers.
//!
//! ```text
//!   ┌──────┐ a reader follows, or claims may have devices ┌───────────┐
//!   │ idle │ ───────────────────────────────────────────> │ following │ reads at each write of the kubelet, each check
//!   └──────┘ <─────────────────────────────────────────── └───────────┘ and each new reader, and publishes
//!                          neither                              │  ^
//!                                                 calls the kubelet  answer: publishes again
//!                                                               v  │
//!                                                          pod resources
//! ```
//!
//! The ledger gets every reading as long as claims may have devices.

mod allocations;
mod checkpoint_reader;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;
use windlass_config::{HostPaths, KubeletLimits, Policy};
use windlass_core::{device::DeviceId, resource::ResourceName};
use windlass_host::{causes, deadline::Deadline, or_pending, watch::changed};
use windlass_kubelet_api::{checkpoint, deviceplugin};

pub use self::{
    allocations::{Allocations, AllocationsReader, FollowGuard},
    checkpoint_reader::{ContainerIds, read_container_ids},
};
use self::{
    allocations::{CheckpointSnapshot, still_held},
    checkpoint_reader::CheckpointReader,
};
use crate::{
    HeldIds,
    ledger::{RecordedDevices, SharedLedger},
    podresources::PodResourcesCache,
};

/// Reads the kubelet's checkpoint, and publishes the containers' devices.
#[derive(Debug)]
pub struct CheckpointFollower<S> {
    ledger: SharedLedger,
    inputs: FollowerInputs<S>,
    reader: CheckpointReader,
    /// Longest time from an Allocate to its entry in the checkpoint.
    checkpoint_delay: Duration,
    check_interval: Duration,
    /// Deadline by which the checkpoint has the last Allocate of an earlier agent; `None` once it has passed.
    catch_up_deadline: Option<Deadline>,
    /// Start of the last reading.
    read_at: Option<Instant>,
    snapshot: Option<CheckpointSnapshot>,
    /// Error of the last reading.
    unreadable: Option<String>,
    /// Running comparison of the last reading with pod resources; at most one.
    review_tasks: JoinSet<()>,
    /// Wakes this task. Each [`FollowGuard`] holds a clone.
    wake: Arc<Notify>,
    publish: watch::Sender<Arc<Allocations>>,
}

/// Inputs of the follower.
#[derive(Debug)]
pub struct FollowerInputs<S> {
    /// Policy, which may offer devices to claims.
    pub policy: watch::Receiver<Arc<Policy>>,
    /// Snapshots of the node, for the devices of a pool.
    pub state: watch::Receiver<Arc<S>>,
    /// Devices of a pool; `None` before the first inventory.
    pub devices_of_pool: fn(&S, &ResourceName) -> Option<BTreeSet<DeviceId>>,
    /// Counts the changes in the folder of the kubelet's checkpoint.
    pub kubelet_writes: watch::Receiver<u64>,
    /// Longest time until the checkpoint has the last Allocate of an earlier agent.
    pub catch_up_delay: Duration,
    /// Holders from the pod resources API.
    pub holders: PodResourcesCache,
}

// === impl CheckpointFollower ===

impl<S> CheckpointFollower<S> {
    /// Creates a follower that feeds this ledger, and the reader of its snapshots.
    pub fn new(
        places: &HostPaths,
        limits: KubeletLimits,
        ledger: SharedLedger,
        inputs: FollowerInputs<S>,
    ) -> (Self, AllocationsReader) {
        let plugins = places.kubelet_dir.join(deviceplugin::PLUGIN_DIR);
        let (sender, newest) = watch::channel(Arc::default());
        let wake = Arc::new(Notify::new());
        let reader = AllocationsReader::new(Arc::downgrade(&wake), newest);
        let follower = Self {
            ledger,
            reader: CheckpointReader::new(plugins.join(checkpoint::FILE_NAME)),
            checkpoint_delay: limits.checkpoint_delay,
            check_interval: limits.check_interval,
            catch_up_deadline: (!inputs.catch_up_delay.is_zero())
                .then(|| Deadline::after(inputs.catch_up_delay)),
            inputs,
            read_at: None,
            snapshot: None,
            unreadable: None,
            review_tasks: JoinSet::new(),
            wake,
            publish: sender,
        };
        (follower, reader)
    }

    /// Follows the checkpoint until stopped.
    pub async fn run(mut self, stop: CancellationToken) {
        stop.run_until_cancelled(self.follow()).await;
    }

    async fn follow(&mut self) {
        loop {
            let updates_ledger = self.updates_ledger();
            if !updates_ledger {
                self.ledger.mark_containers_unknown();
            }
            let is_followed = updates_ledger || Arc::strong_count(&self.wake) > 1;
            if is_followed {
                self.read().await;
            } else {
                self.read_at = None;
            }
            self.wait(is_followed).await;
        }
    }

    /// Waits for a reason to read the checkpoint.
    async fn wait(&mut self, is_followed: bool) {
        loop {
            let awaits_pools = self.updates_ledger() && !self.ledger.watch().borrow().is_complete();
            tokio::select! {
                () = self.wake.notified() => return,
                () = changed(&mut self.inputs.policy) => return,
                () = changed(&mut self.inputs.kubelet_writes) => return,
                () = changed(&mut self.inputs.state), if awaits_pools => return,
                () = or_pending(self.catch_up_deadline.as_mut().map(Deadline::passed)) => {
                    return self.catch_up_deadline = None;
                }
                () = sleep(self.check_interval), if is_followed => return,
                Some(_) = self.review_tasks.join_next() => self.publish(),
            }
        }
    }

    /// True if claims or shares may have devices, or still have some, and the checkpoint can contain an earlier
    /// agent's Allocates.
    fn updates_ledger(&self) -> bool {
        let is_offered = self.inputs.policy.borrow().has_shares_or_claims();
        let is_needed = is_offered || !self.ledger.watch().borrow().claims().is_empty();
        is_needed && self.catch_up_deadline.is_none()
    }

    async fn read(&mut self) {
        let read_at = Instant::now();
        let previous = self.read_at.replace(read_at).unwrap_or(read_at);
        // A running agent reads at least once per interval. A much longer gap means that its process was paused.
        let pause = (read_at - previous).saturating_sub(self.check_interval * 2);
        if !pause.is_zero() {
            self.ledger.shift_for_pause(pause);
        }
        let (snapshot, unreadable) = match self.reader.read().await {
            Ok(checkpoint) => (Some(CheckpointSnapshot::of(checkpoint)), None),
            Err(error) => (None, Some(causes(&error))),
        };
        self.snapshot = snapshot;
        self.log_unreadable(unreadable);
        self.publish();
        let held_ids =
            self.snapshot.as_ref().map(|snapshot| snapshot.held.clone()).unwrap_or_default();
        if !held_ids.is_empty() && self.review_tasks.is_empty() {
            let (holders, check_interval) = (self.inputs.holders.clone(), self.check_interval);
            self.review_tasks.spawn(async move { holders.review(held_ids, check_interval).await });
        }
    }

    /// Publishes the ids of the last reading that are still held.
    fn publish(&mut self) {
        let holders = self.inputs.holders.holders().borrow().clone();
        let snapshot = self.snapshot.clone().map(|snapshot| {
            let ledger = self.ledger.watch();
            still_held(snapshot, &holders, &ledger.borrow(), Instant::now(), self.check_interval)
        });
        if let Some(still_held) = snapshot.as_ref().filter(|_| self.updates_ledger()) {
            self.update_ledger(&still_held.held);
        }
        self.publish.send_replace(Arc::new(Allocations::new(self.read_at, snapshot)));
    }

    /// Feeds the ledger with the held ids. Until its first feed, every id of the checkpoint counts as held.
    fn update_ledger(&self, still_held: &HeldIds) {
        let recorded = match &self.snapshot {
            Some(snapshot) if !self.ledger.watch().borrow().is_complete() => {
                self.with_devices_of_pools(self.recorded_devices(&snapshot.held))
            }
            _ => Some(self.recorded_devices(still_held)),
        };
        if let Some((recorded, read_at)) = recorded.zip(self.read_at) {
            self.ledger.apply_checkpoint(&recorded, read_at, self.checkpoint_delay);
        }
    }

    /// Devices and pools of these ids. Tokens of shares by amounts stand for no device.
    fn recorded_devices(&self, held_ids: &HeldIds) -> RecordedDevices {
        let policy = self.inputs.policy.borrow();
        let mut recorded = RecordedDevices::from_held_ids(held_ids);
        recorded.pools.retain(|name| !policy.shares.names().any(|shares| shares == name));
        recorded
    }

    /// Adds all devices of each pool: a token from an earlier agent may stand for any of them. `None` before the first
    /// inventory.
    fn with_devices_of_pools(&self, mut recorded: RecordedDevices) -> Option<RecordedDevices> {
        let state = self.inputs.state.borrow().clone();
        for pool in &recorded.pools {
            let devices = (self.inputs.devices_of_pool)(&state, pool)?.into_iter();
            recorded.devices.extend(devices.map(|device| (device, pool.clone())));
        }
        Some(recorded)
    }

    /// Logs a new error of reading.
    fn log_unreadable(&mut self, unreadable: Option<String>) {
        if let Some(error) = unreadable.as_ref().filter(|_| unreadable != self.unreadable) {
            let path = self.reader.path().display();
            tracing::warn!(
                %path,
                error,
                "kubelet checkpoint unreadable: no claim gets a device until it can be read"
            );
        }
        self.unreadable = unreadable;
    }
}
