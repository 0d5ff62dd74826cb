//! The disk beside the reconciler: CDI documents, the notes of what ids stand for, and files for CNI plugins.
//!
//! ```text
//!  reconciler ──Wanted (newest wins)──> Disk, on a thread of its own ──> documents, notes, files
//!    ^                                    │
//!    └──────────────Found─────────────────┘   what is there, and what it was wanted for
//! ```
//!
//! The reconciler waits for none of it: a write that hangs costs what is new, and no news of what is there. A device is
//! offered when what is found covers it.

use std::{collections::BTreeMap, future::pending, sync::Arc};

use tokio::{
    sync::watch,
    task::spawn_blocking,
    time::{Duration, Instant, sleep_until},
};
use windlass_config::{Delivery, MpsSettings, Places, Policy};
use windlass_core::{
    device::{Device, DeviceId},
    inventory::Inventory,
};
use windlass_discovery::PROFILE;
use windlass_resources::{
    device_info::{DeviceInfoFiles, DeviceInfos, Untold},
    offers::Marked,
};

use super::{
    look::{Look, Looked},
    notes::NotesFile,
};

/// What is wanted on the disk.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Wanted {
    pub(super) inventory: Inventory,
    pub(super) policy: Arc<Policy>,
    /// What CNI plugins are to be told.
    pub(super) infos: DeviceInfos,
    /// What ids stand for.
    pub(super) marked: Marked,
}

/// What is there.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) looked: Looked,
    /// What CNI plugins could not be told.
    pub(super) untold: Untold,
    /// What it was wanted for; `None` before the first.
    wanted: Option<Arc<Wanted>>,
    /// The devices of it.
    devices: BTreeMap<DeviceId, Device>,
}

/// Does what is wanted.
pub(super) struct Disk {
    look: Look,
    infos: DeviceInfoFiles,
    notes: NotesFile,
}

/// The way to the disk.
pub(super) struct DiskDesk {
    wanted: watch::Sender<Arc<Wanted>>,
    pub(super) found: watch::Receiver<Arc<Found>>,
    /// Since when it is at work.
    busy: watch::Receiver<Option<Instant>>,
}

/// The other end.
pub(super) struct DiskQueue {
    pub(super) wanted: watch::Receiver<Arc<Wanted>>,
    pub(super) found: watch::Sender<Arc<Found>>,
    pub(super) busy: watch::Sender<Option<Instant>>,
}

/// How long the disk may take before it counts as slow: what is new is then told as waiting for it, until when it is
/// kept from whoever would see it come in two steps.
pub(super) const DEADLINE: Duration = Duration::from_secs(5);

/// Makes both ends.
pub(super) fn desk() -> (DiskDesk, DiskQueue) {
    let (want, wanted) = watch::channel(Arc::default());
    let (tell, found) = watch::channel(Arc::default());
    let (work, busy) = watch::channel(None);
    (DiskDesk { wanted: want, found, busy }, DiskQueue { wanted, found: tell, busy: work })
}

// === impl Disk ===

impl Disk {
    pub(super) fn new(places: &Places, mps: &MpsSettings, delivery: Delivery) -> Self {
        Self {
            look: Look::new(places, mps, delivery),
            infos: DeviceInfoFiles::new(places),
            notes: NotesFile::new(places),
        }
    }

    /// Takes up what an earlier life noted, and finds the driver's files meanwhile. Blocks.
    pub(super) fn open(&mut self, policy: &Policy) -> Marked {
        self.look.warm_up(policy);
        self.notes.load(&policy.delivery)
    }

    /// Does what is wanted, the newest of it, until nobody wants anything.
    pub(super) async fn run(self, mut queue: DiskQueue) {
        let mut disk = self;
        while queue.wanted.changed().await.is_ok() {
            let wanted = queue.wanted.borrow_and_update().clone();
            queue.busy.send_replace(Some(Instant::now()));
            let work = move || {
                let found = disk.bring_about(wanted);
                (disk, found)
            };
            let done = spawn_blocking(work).await;
            let (back, found) = done.expect("the work neither panics nor is cancelled");
            disk = back;
            queue.busy.send_replace(None);
            queue.found.send_replace(Arc::new(found));
        }
    }

    /// What cannot be written costs no other, and is found so.
    pub(super) fn bring_about(&mut self, wanted: Arc<Wanted>) -> Found {
        let looked = self.look.run(&wanted.inventory, &wanted.policy);
        let untold = if self.infos.is_idle(&wanted.infos) {
            Untold::default()
        } else {
            self.infos.keep(&wanted.infos)
        };
        self.notes.write(&wanted.marked);
        let devices = wanted.inventory.devices.iter().map(|it| (it.id.clone(), it.clone()));
        Found { looked, untold, devices: devices.collect(), wanted: Some(wanted) }
    }
}

// === impl DiskDesk ===

impl DiskDesk {
    /// Has something done, though the same was wanted before: somebody may have removed a document.
    pub(super) fn want(&self, wanted: Wanted) {
        self.wanted.send_replace(Arc::new(wanted));
    }

    /// Has something done that was not wanted before.
    pub(super) fn want_news(&self, wanted: Wanted) {
        if **self.wanted.borrow() != wanted {
            self.want(wanted);
        }
    }

    /// The last wanted state has these devices.
    pub(super) fn has_been_told_of(&self, devices: &[Device]) -> bool {
        self.wanted.borrow().inventory.devices == devices
    }

    /// Since when it does not answer, if it is slow.
    pub(super) fn slow_since(&self) -> Option<Instant> {
        self.busy.borrow().filter(|since| since.elapsed() >= DEADLINE)
    }

    /// Since when it is at work, if it is.
    pub(super) fn busy(&self) -> watch::Receiver<Option<Instant>> {
        self.busy.clone()
    }
}

// === impl Found ===

impl Found {
    /// Whether it was found for that way of handing devices out.
    pub(super) fn is_for(&self, policy: &Policy) -> bool {
        self.wanted.as_ref().is_some_and(|wanted| *wanted.policy == *policy)
    }

    /// Whether CNI plugins are told of a device what they are to be told.
    pub(super) fn tells(&self, device: &Device, wanted: &Wanted) -> bool {
        let told = self.wanted.as_ref().and_then(|had| had.infos.get(&device.id));
        told == wanted.infos.get(&device.id)
    }

    /// Whether all is there that is wanted for a device.
    pub(super) fn covers(&self, device: &Device, wanted: &Wanted) -> bool {
        let Some(had) = &self.wanted else { return false };
        let is_known = self.devices.get(&device.id).is_some_and(|known| is_same(known, device));
        is_known
            && *had.policy == *wanted.policy
            && self.tells(device, wanted)
            && had.marked.get(&device.id) == wanted.marked.get(&device.id)
    }
}

/// Waits until it has become slow, for ever if it is idle.
pub(super) async fn slowness(mut busy: watch::Receiver<Option<Instant>>) {
    loop {
        let due = busy.borrow_and_update().map(|since| since + DEADLINE);
        let late = async {
            match due {
                Some(due) if due > Instant::now() => sleep_until(due).await,
                _ => pending().await,
            }
        };
        tokio::select! {
            () = late => return,
            changed = busy.changed() => if changed.is_err() { pending::<()>().await },
        }
    }
}

/// Whether two accounts of a device are the same in all that documents and notes say of it. What it measures and how it
/// fares is in none.
pub(super) fn is_same(one: &Device, other: &Device) -> bool {
    fn said(it: &Device) -> impl PartialEq + '_ {
        let whole = (&it.parent, it.part, it.partitioned, it.attributes.get(&PROFILE));
        (it.kind, &it.source, it.index, &it.place, &it.origin, &it.nodes, &it.extras, whole)
    }
    said(one) == said(other)
}
