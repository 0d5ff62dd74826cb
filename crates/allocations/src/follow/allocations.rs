//! Snapshot of the containers' devices in the kubelet's checkpoint.

use std::{
    cell::LazyCell,
    collections::BTreeSet,
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use windlass_core::{
    device::DeviceId,
    replica::{device_of_id, token_number},
};
use windlass_kubelet_api::checkpoint::Checkpoint;

use super::checkpoint_reader::{
    ContainerIds, PodsByDevice, container_ids, held_ids, pods_by_device,
};
use crate::{
    HeldIds,
    ledger::Ledger,
    podresources::{Holders, release_delay},
};

/// Devices of containers in the kubelet's checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocations {
    read_at: Option<Instant>,
    snapshot: Option<CheckpointSnapshot>,
}

/// Content of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CheckpointSnapshot {
    pub(super) held: HeldIds,
    pods: Arc<PodsByDevice>,
    containers: Arc<[ContainerIds]>,
}

/// Reader of the follower's snapshots. The follower reads the checkpoint while a reader has a [`FollowGuard`].
#[derive(Clone, Debug)]
pub struct AllocationsReader {
    wake: Weak<Notify>,
    newest: watch::Receiver<Arc<Allocations>>,
}

/// Subscription to the checkpoint: while it lives, the follower reads at each write of the kubelet and at each check.
#[derive(Debug)]
#[must_use = "the checkpoint is read for as long as this lives"]
pub struct FollowGuard(
    #[expect(dead_code, reason = "the follower counts the clones")] Option<Arc<Notify>>,
);

/// Removes released ids. An id that pod resources omit still counts as held, as long as the kubelet can be made to
/// write a newer checkpoint: see [`Holders::has_released`].
pub(super) fn still_held(
    mut snapshot: CheckpointSnapshot,
    holders: &Holders,
    ledger: &Ledger,
    now: Instant,
    check_interval: Duration,
) -> CheckpointSnapshot {
    let delay = release_delay(check_interval);
    for (resource, ids) in &mut snapshot.held {
        // Computed once: a resource of shares has hundreds of tokens.
        let of_resource = LazyCell::new(|| ledger.resource_allocated_at(resource));
        ids.retain(|id| {
            let allocated_at = match device_of_id(id).filter(|_| token_number(id).is_none()) {
                Some(device) => ledger.allocated_at(&device),
                None => *of_resource,
            };
            !holders.has_released(resource, id, allocated_at, now, delay)
        });
    }
    snapshot.held.retain(|_, ids| !ids.is_empty());
    snapshot
}

// === impl Allocations ===

impl Allocations {
    pub(super) fn new(read_at: Option<Instant>, snapshot: Option<CheckpointSnapshot>) -> Self {
        Self { read_at, snapshot }
    }

    /// Start of the last reading, even of an unreadable checkpoint; `None` before the first.
    pub fn read_at(&self) -> Option<Instant> {
        self.read_at
    }

    /// Ids that containers hold; `None` if the checkpoint cannot be read.
    pub fn held_ids(&self) -> Option<&HeldIds> {
        self.snapshot.as_ref().map(|snapshot| &snapshot.held)
    }

    /// Ids of each container, released ones included; `None` if the checkpoint cannot be read.
    pub fn containers(&self) -> Option<&[ContainerIds]> {
        self.snapshot.as_ref().map(|snapshot| &*snapshot.containers)
    }

    /// True if a container holds the device, whole or in part; `None` if the checkpoint cannot be read.
    pub fn holds(&self, device: &DeviceId) -> Option<bool> {
        let mut ids = self.held_ids()?.values().flatten();
        Some(ids.any(|id| device_of_id(id).is_some_and(|id| id == *device)))
    }

    /// UIDs of the pods that hold the device; `None` if the checkpoint cannot be read.
    pub fn pods(&self, device: &DeviceId) -> Option<BTreeSet<String>> {
        Some(self.snapshot.as_ref()?.pods.get(device).cloned().unwrap_or_default())
    }
}

// === impl CheckpointSnapshot ===

impl CheckpointSnapshot {
    pub(super) fn of(checkpoint: Checkpoint) -> Self {
        let (held, containers) = (held_ids(&checkpoint), container_ids(&checkpoint).into());
        Self { held, containers, pods: Arc::new(pods_by_device(checkpoint)) }
    }
}

// === impl AllocationsReader ===

impl AllocationsReader {
    pub(super) fn new(wake: Weak<Notify>, newest: watch::Receiver<Arc<Allocations>>) -> Self {
        Self { wake, newest }
    }

    /// Makes the follower read the checkpoint now, and follow it as long as the guard lives.
    pub fn follow(&self) -> FollowGuard {
        let wake = self.wake.upgrade();
        if let Some(wake) = &wake {
            wake.notify_one();
        }
        FollowGuard(wake)
    }

    /// Waits for a reading that begins after this call. Empty once the follower has ended.
    pub async fn read(&self) -> Arc<Allocations> {
        let (called_at, _subscription) = (Instant::now(), self.follow());
        let mut newest = self.newest.clone();
        let read = newest.wait_for(|allocations| allocations.read_at >= Some(called_at)).await;
        read.map_or_else(|_| Arc::default(), |allocations| allocations.clone())
    }

    /// Snapshots of the follower.
    pub fn watch(&self) -> watch::Receiver<Arc<Allocations>> {
        self.newest.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{
        SharedLedger,
        tests::{resource, without_overlaps},
    };

    const CHECK: Duration = Duration::from_secs(10);

    fn snapshot() -> CheckpointSnapshot {
        CheckpointSnapshot {
            held: HeldIds::from([(resource(), ["GPU-a".to_owned()].into())]),
            pods: Arc::default(),
            containers: [].into(),
        }
    }

    #[test]
    fn an_omitted_id_is_held_until_the_release_delay_is_over() {
        let (ledger, now) = (SharedLedger::default(), Instant::now());
        let is_held = |holders: &Holders, seconds| {
            let checked_at = now + Duration::from_secs(seconds);
            let ledger_snapshot = ledger.watch().borrow().clone();
            !still_held(snapshot(), holders, &ledger_snapshot, checked_at, CHECK).held.is_empty()
        };
        assert!(is_held(&Holders::default(), 1_000), "pod resources were not read");
        let released = Holders::with_released(&resource(), "GPU-a", now);
        assert!(is_held(&released, 29));
        assert!(!is_held(&released, 30));
        ledger.take_for_container(&resource(), &[without_overlaps("GPU-a")]).expect("free");
        assert!(is_held(&released, 1_000), "it was allocated since");
    }

    #[test]
    fn holders_are_unknown_if_the_checkpoint_cannot_be_read() {
        let device = |id: &str| id.parse::<DeviceId>().expect("an id");
        let now = Instant::now();
        let readable = Allocations::new(Some(now), Some(snapshot()));
        assert_eq!(readable.holds(&device("GPU-a")), Some(true));
        assert_eq!(readable.holds(&device("GPU-b")), Some(false));
        let unreadable = Allocations::new(Some(now), None);
        assert_eq!(unreadable.holds(&device("GPU-a")), None);
        assert_eq!(unreadable.pods(&device("GPU-a")), None);
        assert_eq!(readable.pods(&device("GPU-b")), Some(BTreeSet::new()));
    }
}
