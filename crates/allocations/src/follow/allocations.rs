//! The devices that containers have by the kubelet's record: one snapshot for all readers.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use windlass_core::{
    device::DeviceId,
    replica::{device_of, token},
};
use windlass_kubelet_api::checkpoint::Checkpoint;

use super::record::{ByPod, by_pod, held};
use crate::{
    Held,
    ledger::Ledger,
    podresources::{Holders, patience},
};

/// The devices that containers have by the kubelet's record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocations {
    read: Option<Instant>,
    record: Option<Record>,
}

/// The kubelet's record, as far as it matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) held: Held,
    pods: Arc<ByPod>,
}

/// The way to what containers have. The record is read for as long as somebody follows.
#[derive(Clone, Debug)]
pub struct AllocationsDesk {
    followers: watch::Sender<()>,
    wake: Arc<Notify>,
    newest: watch::Receiver<Arc<Allocations>>,
}

/// Has the record read at each write of the kubelet and each look, until dropped.
#[derive(Debug)]
#[must_use = "the record is read for as long as this lives"]
pub struct Following(#[expect(dead_code, reason = "counted, never read")] watch::Receiver<()>);

/// Leaves of the record what is held still. What the kubelet does not tell of is, unless no record can be had that
/// says more: see [`Holders::has_let_go`].
pub(super) fn still_held(
    mut record: Record,
    told: &Holders,
    ledger: &Ledger,
    (now, look_interval): (Instant, Duration),
) -> Record {
    for (resource, ids) in &mut record.held {
        ids.retain(|id| {
            let given = match device_of(id).filter(|_| token(id).is_none()) {
                Some(device) => ledger.given(&device),
                None => ledger.given_as(resource),
            };
            !told.has_let_go((resource, id), given, (now, patience(look_interval)))
        });
    }
    record.held.retain(|_, ids| !ids.is_empty());
    record
}

// === impl Allocations ===

impl Allocations {
    pub(super) fn new(read: Option<Instant>, record: Option<Record>) -> Self {
        Self { read, record }
    }

    /// When the reading began, of a record that may be unreadable; `None` before the first one.
    pub fn read(&self) -> Option<Instant> {
        self.read
    }

    /// The ids that containers hold; `None` where the record cannot be read.
    pub fn held(&self) -> Option<&Held> {
        self.record.as_ref().map(|record| &record.held)
    }

    /// A container holds the device, whole or in part; `None` where the record cannot be read.
    pub fn holds(&self, device: &DeviceId) -> Option<bool> {
        let mut ids = self.held()?.values().flatten();
        Some(ids.any(|id| device_of(id).is_some_and(|it| it == *device)))
    }

    /// The UIDs of the pods that the record gives a device to; `None` where the record cannot be read.
    pub fn pods(&self, device: &DeviceId) -> Option<BTreeSet<String>> {
        Some(self.record.as_ref()?.pods.get(device).cloned().unwrap_or_default())
    }
}

// === impl Record ===

impl Record {
    pub(super) fn of(checkpoint: Checkpoint) -> Self {
        Self { held: held(&checkpoint), pods: Arc::new(by_pod(checkpoint)) }
    }
}

// === impl AllocationsDesk ===

impl AllocationsDesk {
    pub(super) fn new(
        followers: watch::Sender<()>,
        wake: Arc<Notify>,
        newest: watch::Receiver<Arc<Allocations>>,
    ) -> Self {
        Self { followers, wake, newest }
    }

    /// Has the record read now, and then for as long as the answer lives.
    pub fn follow(&self) -> Following {
        let follower = self.followers.subscribe();
        self.wake.notify_one();
        Following(follower)
    }

    /// Waits for a reading that begins after this call. A follower that has ended knows nothing.
    pub async fn read(&self) -> Arc<Allocations> {
        let (asked, _following) = (Instant::now(), self.follow());
        let mut newest = self.newest.clone();
        let read = newest.wait_for(|known| known.read >= Some(asked)).await;
        read.map_or_else(|_| Arc::default(), |known| known.clone())
    }

    /// The newest snapshot, as it changes.
    pub fn watch(&self) -> watch::Receiver<Arc<Allocations>> {
        self.newest.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{
        LedgerDesk,
        tests::{alone, resource},
    };

    const LOOK: Duration = Duration::from_secs(10);

    fn record() -> Record {
        Record {
            held: Held::from([(resource(), ["GPU-a".to_owned()].into())]),
            pods: Arc::default(),
        }
    }

    #[test]
    fn what_the_record_has_is_held_unless_nothing_better_can_be_known() {
        let (ledger, now) = (LedgerDesk::default(), Instant::now());
        let is_held = |told: &Holders, seconds| {
            let at = now + Duration::from_secs(seconds);
            let known = ledger.watch().borrow().clone();
            !still_held(record(), told, &known, (at, LOOK)).held.is_empty()
        };
        assert!(is_held(&Holders::default(), 1_000), "though nobody tells of it");
        let gone = Holders::of_one_let_go(&resource(), "GPU-a", now);
        assert!(is_held(&gone, 29));
        assert!(!is_held(&gone, 30));
        ledger.take_for_container(&resource(), &[alone("GPU-a")]).expect("free");
        assert!(is_held(&gone, 1_000), "it was given away since");
    }

    #[test]
    fn nobody_knows_who_holds_a_device_of_a_record_that_cannot_be_read() {
        let device = |id: &str| id.parse::<DeviceId>().expect("an id");
        let now = Instant::now();
        let read = Allocations::new(Some(now), Some(record()));
        assert_eq!(read.holds(&device("GPU-a")), Some(true));
        assert_eq!(read.holds(&device("GPU-b")), Some(false));
        let unreadable = Allocations::new(Some(now), None);
        assert_eq!(unreadable.holds(&device("GPU-a")), None);
        assert_eq!(unreadable.pods(&device("GPU-a")), None);
        assert_eq!(read.pods(&device("GPU-b")), Some(BTreeSet::new()));
    }
}
