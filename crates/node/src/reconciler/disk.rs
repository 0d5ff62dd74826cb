//! Disk worker of the reconciler: CDI documents, fingerprints of allocated devices, and files for CNI plugins.
//!
//! ```text
//!  reconciler ──DesiredFiles (newest wins)─> Disk, on a blocking thread ──> files
//!    ^                                         │
//!    └───────────────DiskState─────────────────┘
//! ```
//!
//! The reconciler never waits for the disk: a hanging write delays new devices and no other change. A device is offered
//! once the disk state covers it.

use std::{collections::BTreeMap, future::pending, sync::Arc};

use tokio::{
    sync::watch,
    time::{Duration, Instant, sleep_until},
};
use windlass_cdi::memory_limits::ReplicaSize;
use windlass_config::{HostPaths, Policy};
use windlass_core::{
    device::{Device, DeviceId},
    inventory::Inventory,
};
use windlass_host::blocking;
use windlass_resources::{
    device_info::{DeviceInfoFiles, DeviceInfos, OutdatedFiles},
    offers::Fingerprints,
};

use super::{
    disk_check::{DiskCheck, DiskCheckResult},
    fingerprints::FingerprintFile,
};

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct DesiredFiles {
    pub(super) inventory: Inventory,
    pub(super) policy: Arc<Policy>,
    /// Device information for CNI plugins.
    pub(super) infos: DeviceInfos,
    /// Fingerprint of the hardware behind each id.
    pub(super) allocated_hardware: Fingerprints,
    /// Memory limit of replicas, by GPU.
    pub(super) replica_sizes: BTreeMap<DeviceId, ReplicaSize>,
}

/// Result of the latest pass.
#[derive(Debug, Default)]
pub(super) struct DiskState {
    pub(super) check_result: DiskCheckResult,
    /// Device information files that are outdated, because a write failed.
    pub(super) outdated: OutdatedFiles,
    /// Request of this pass; `None` before the first.
    desired: Option<Arc<DesiredFiles>>,
    devices: BTreeMap<DeviceId, Device>,
}

/// Worker on a blocking thread.
pub(super) struct Disk {
    check: DiskCheck,
    infos: DeviceInfoFiles,
    fingerprints: FingerprintFile,
}

pub(super) struct DiskHandle {
    desired: watch::Sender<Arc<DesiredFiles>>,
    pub(super) on_disk: watch::Receiver<Arc<DiskState>>,
    /// Start of the current pass.
    busy_since: watch::Receiver<Option<Instant>>,
}

/// Worker's end of the channels.
pub(super) struct DiskChannels {
    pub(super) desired: watch::Receiver<Arc<DesiredFiles>>,
    pub(super) on_disk: watch::Sender<Arc<DiskState>>,
    pub(super) busy_since: watch::Sender<Option<Instant>>,
}

/// Deadline of a pass. New devices are published once their files are written, and not before, as waiting for the disk.
/// If a pass exceeds the deadline, the disk counts as slow, and new devices are published as waiting for it.
pub(super) const DEADLINE: Duration = Duration::from_secs(5);

/// Creates the handle and the worker's end.
pub(super) fn channel() -> (DiskHandle, DiskChannels) {
    let (desired_sender, desired) = watch::channel(Arc::default());
    let (state_sender, on_disk) = watch::channel(Arc::default());
    let (busy_sender, busy_since) = watch::channel(None);
    (
        DiskHandle { desired: desired_sender, on_disk, busy_since },
        DiskChannels { desired, on_disk: state_sender, busy_since: busy_sender },
    )
}

// === impl Disk ===

impl Disk {
    pub(super) fn new(places: &HostPaths, check: DiskCheck) -> Self {
        Self {
            check,
            infos: DeviceInfoFiles::new(places),
            fingerprints: FingerprintFile::new(places),
        }
    }

    /// Loads the previous agent's fingerprints, and finds the driver's files for CDI documents. Blocks.
    pub(super) fn open(&mut self, policy: &Policy) -> Fingerprints {
        self.check.find_driver_files(policy);
        self.fingerprints.load(&policy.delivery)
    }

    /// Processes the latest request until the handle is dropped.
    pub(super) async fn run(self, mut channels: DiskChannels) {
        let mut disk = self;
        while channels.desired.changed().await.is_ok() {
            let desired = channels.desired.borrow_and_update().clone();
            channels.busy_since.send_replace(Some(Instant::now()));
            let work = move || {
                let on_disk = disk.apply(desired);
                (disk, on_disk)
            };
            let (worker, on_disk) = blocking(work).await;
            disk = worker;
            channels.busy_since.send_replace(None);
            channels.on_disk.send_replace(Arc::new(on_disk));
        }
    }

    /// Writes the desired files. A failed write does not affect the other files.
    pub(super) fn apply(&mut self, desired: Arc<DesiredFiles>) -> DiskState {
        let check_result = self.check.run(&desired);
        let outdated = if self.infos.has_no_work(&desired.infos) {
            OutdatedFiles::default()
        } else {
            self.infos.reconcile(&desired.infos)
        };
        self.fingerprints.write(&desired.allocated_hardware);
        let devices =
            desired.inventory.devices.iter().map(|device| (device.id.clone(), device.clone()));
        DiskState { check_result, outdated, devices: devices.collect(), desired: Some(desired) }
    }
}

// === impl DiskHandle ===

impl DiskHandle {
    /// Requests files, even if unchanged: one may have been deleted.
    pub(super) fn request(&self, desired: DesiredFiles) {
        self.desired.send_replace(Arc::new(desired));
    }

    /// Requests files if they changed.
    pub(super) fn request_if_changed(&self, desired: DesiredFiles) {
        if **self.desired.borrow() != desired {
            self.request(desired);
        }
    }

    /// True if the latest request has these devices.
    pub(super) fn has_requested(&self, devices: &[Device]) -> bool {
        self.desired.borrow().inventory.devices == devices
    }

    /// Start of a pass that exceeds the deadline.
    pub(super) fn slow_since(&self) -> Option<Instant> {
        self.busy_since.borrow().filter(|since| since.elapsed() >= DEADLINE)
    }

    /// Start of the current pass.
    pub(super) fn busy_since(&self) -> watch::Receiver<Option<Instant>> {
        self.busy_since.clone()
    }
}

// === impl DiskState ===

impl DiskState {
    /// True if the result belongs to this policy.
    pub(super) fn matches(&self, policy: &Policy) -> bool {
        self.desired.as_ref().is_some_and(|desired| *desired.policy == *policy)
    }

    /// True if the latest pass was to write this CNI information of the device. A failed write is in `outdated`.
    pub(super) fn has_current_info(&self, device: &Device, desired: &DesiredFiles) -> bool {
        let written = self.desired.as_ref().and_then(|written| written.infos.get(&device.id));
        written == desired.infos.get(&device.id)
    }

    /// True if the latest pass was to write the device's files as they are desired now. Does not look at
    /// failed writes, which become obstacles or warnings.
    pub(super) fn covers(&self, device: &Device, desired: &DesiredFiles) -> bool {
        let Some(written) = &self.desired else { return false };
        let is_unchanged =
            self.devices.get(&device.id).is_some_and(|checked| is_same(checked, device));
        is_unchanged
            && *written.policy == *desired.policy
            && self.has_current_info(device, desired)
            && written.replica_sizes.get(&device.id) == desired.replica_sizes.get(&device.id)
            && written.allocated_hardware.get(&device.id)
                == desired.allocated_hardware.get(&device.id)
    }
}

/// Waits until a pass exceeds its deadline. Pending while the worker is idle, and during a pass that is late already.
pub(super) async fn wait_until_slow(mut busy_since: watch::Receiver<Option<Instant>>) {
    loop {
        let due = busy_since.borrow_and_update().map(|since| since + DEADLINE);
        let deadline_passed = async {
            match due {
                Some(due) if due > Instant::now() => sleep_until(due).await,
                _ => pending().await,
            }
        };
        tokio::select! {
            () = deadline_passed => return,
            changed = busy_since.changed() => if changed.is_err() { pending::<()>().await },
        }
    }
}

/// Compares the properties that documents and fingerprints contain, without health and telemetry.
pub(super) fn is_same(device: &Device, other: &Device) -> bool {
    fn properties(device: &Device) -> impl PartialEq + '_ {
        let partitioning = (&device.parent, device.part, device.partitioned, device.mig_profile());
        (
            device.kind,
            &device.source,
            device.index,
            &device.place,
            &device.origin,
            &device.nodes,
            &device.extras,
            partitioning,
        )
    }
    properties(device) == properties(other)
}
