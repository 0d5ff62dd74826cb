//! Tracked NVIDIA devices with their health.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use windlass_core::{
    device::{Device, DeviceId, DeviceKind, ExtraEdits},
    health::{HealthTracker, Observation, Reason},
};
use windlass_host::clock::Clock;

use super::procfs::ListedGpu;
use crate::{health_store::HealthRecords, log};

/// Devices by id, present and vanished.
///
/// A device that was healthy once stays: the kubelet may have allocated it and must learn that it is unhealthy.
/// Vanished MIG instances are the exception: an instance that the agent removed is dropped, others are kept up to a
/// limit.
pub(super) struct TrackedDevices {
    devices: BTreeMap<DeviceId, TrackedDevice>,
    /// Records of an earlier agent process for devices that this process has not found yet.
    earlier_records: HealthRecords,
    quiet_period: Duration,
    clock: Clock,
}

struct TrackedDevice {
    device: Device,
    tracker: HealthTracker,
    was_healthy: bool,
    /// True if the agent removed the device, which is dropped once a scan misses it.
    is_removed: bool,
}

/// Maximum number of vanished MIG instances in the snapshot: several layouts of eight GPUs.
const MAX_VANISHED_INSTANCES: usize = 256;

// === impl TrackedDevices ===

impl TrackedDevices {
    pub(super) fn new(quiet_period: Duration, clock: Clock) -> Self {
        Self {
            devices: BTreeMap::new(),
            earlier_records: HealthRecords::new(),
            quiet_period,
            clock,
        }
    }

    pub(super) fn set_quiet_period(&mut self, quiet_period: Duration) {
        self.quiet_period = quiet_period;
        self.devices.values_mut().for_each(|entry| entry.tracker.set_quiet_period(quiet_period));
    }

    /// Stores the records of an earlier agent process. A device resumes its record when it is described.
    pub(super) fn set_earlier_records(&mut self, records: HealthRecords) {
        self.earlier_records = records;
    }

    /// Records for the next agent process: every device that had failures.
    pub(super) fn records(&self) -> HealthRecords {
        let record = |(id, entry): (&DeviceId, &TrackedDevice)| {
            let record = entry.tracker.record();
            (!record.failures.is_empty()).then(|| (id.clone(), record))
        };
        let mut records = self.earlier_records.clone();
        records.extend(self.devices.iter().filter_map(record));
        records
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub(super) fn clock(&self) -> Clock {
        self.clock
    }

    /// Updates or adds a device. A new device resumes the health record of an earlier agent process. Without a record,
    /// a MIG instance starts with the health of its GPU.
    pub(super) fn describe(&mut self, device: Device) {
        if let Some(entry) = self.devices.get_mut(&device.id) {
            entry.device = device;
            return;
        }
        let parent_device = device.parent.as_ref().and_then(|parent| self.devices.get(parent));
        let tracker = match parent_device {
            Some(parent_device) => parent_device.tracker.clone(),
            None => HealthTracker::new(self.quiet_period, self.clock.now()),
        };
        let tracker = match self.earlier_records.remove(&device.id) {
            Some(record) => HealthTracker::resume(record, self.quiet_period, self.clock.now()),
            None => tracker,
        };
        let was_healthy = tracker.health().is_healthy();
        self.devices.insert(
            device.id.clone(),
            TrackedDevice { device, tracker, was_healthy, is_removed: false },
        );
    }

    /// Ids of a GPU that the kernel module lists, found by its id or address, and of the GPU's MIG instances. Only
    /// devices that were healthy once.
    pub(super) fn gpu_and_instances_at(&self, listed_gpu: Option<&ListedGpu>) -> Vec<DeviceId> {
        let Some(listed_gpu) = listed_gpu else { return Vec::new() };
        let is_listed = |device: &Device| {
            listed_gpu.id.as_ref() == Some(&device.id)
                || device.place.pci == Some(listed_gpu.function.address)
        };
        let is_match = |entry: &&TrackedDevice| is_listed(&entry.device) && entry.was_healthy;
        self.devices.values().filter(is_match).map(|entry| entry.device.id.clone()).collect()
    }

    pub(super) fn observe(&mut self, id: &DeviceId, observation: &Observation) {
        let now = self.clock.now();
        let Some(entry) = self.devices.get_mut(id) else { return };
        if let Observation::Failed(Reason::Vanished | Reason::DriverGone, _) = observation {
            // The DRM nodes of this device may belong to another device by now.
            entry.device.extras = ExtraEdits::default();
        }
        let change = entry.tracker.observe(observation, now);
        let health = entry.tracker.health();
        entry.was_healthy |= health.is_healthy();
        if let Some(from) = change {
            log::health_changed(id, from, health);
        }
    }

    /// Marks a device as vanished. Drops one that was never healthy, or that the agent removed.
    pub(super) fn mark_vanished(&mut self, id: &DeviceId, detail: &str) {
        if self.devices.get(id).is_some_and(|entry| !entry.was_healthy || entry.is_removed) {
            self.devices.remove(id);
            return;
        }
        self.observe(id, &Observation::Failed(Reason::Vanished, detail.to_owned()));
        self.prune_vanished();
    }

    /// Drops a device that the agent removed, at once or when it vanishes, because a running scan may still find it.
    pub(super) fn mark_removed(&mut self, id: &DeviceId) {
        let Some(entry) = self.devices.get_mut(id) else { return };
        entry.is_removed = true;
        if entry.has_vanished() {
            self.devices.remove(id);
        }
    }

    /// Drops the MIG instances that vanished first, if their number exceeds the limit.
    fn prune_vanished(&mut self) {
        let instances = self.devices.values().filter(|entry| entry.device.kind == DeviceKind::Mig);
        let vanished = instances.filter(|entry| entry.has_vanished());
        let mut vanished: Vec<_> =
            vanished.map(|entry| (entry.tracker.health().since, entry.device.id.clone())).collect();
        vanished.sort();
        let count = vanished.len().min(MAX_VANISHED_INSTANCES);
        for (_, id) in vanished.drain(..vanished.len() - count) {
            self.devices.remove(&id);
        }
    }

    pub(super) fn fail_all(&mut self, reason: Reason, detail: &str) {
        let ids: Vec<_> = self.devices.keys().cloned().collect();
        for id in ids {
            self.observe(&id, &Observation::Failed(reason, detail.to_owned()));
        }
    }

    /// Earliest possible recovery of these devices.
    pub(super) fn next_recovery<'a>(
        &self,
        ids: impl IntoIterator<Item = &'a DeviceId>,
    ) -> Option<Timestamp> {
        let recovery = |id| self.devices.get(id)?.tracker.recovers_at();
        ids.into_iter().filter_map(recovery).min()
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = &DeviceId> {
        self.devices.keys()
    }

    /// Devices with their health.
    pub(super) fn devices(&self) -> Vec<Device> {
        let with_health = |entry: &TrackedDevice| Device {
            health: entry.tracker.health().clone(),
            ..entry.device.clone()
        };
        self.devices.values().map(with_health).collect()
    }
}

// === impl TrackedDevice ===

impl TrackedDevice {
    fn has_vanished(&self) -> bool {
        self.tracker.health().has_vanished()
    }
}

#[cfg(test)]
mod tests {
    use windlass_core::device::SourceName;

    use super::*;

    fn tracked() -> TrackedDevices {
        TrackedDevices::new(Duration::ZERO, Clock::starting_at(Timestamp::UNIX_EPOCH))
    }

    /// A described and healthy MIG instance.
    fn instance(tracked: &mut TrackedDevices, number: usize) -> DeviceId {
        let id: DeviceId = format!("MIG-{number}").parse().expect("an id");
        let source = SourceName::NVIDIA;
        tracked.describe(Device::new(id.clone(), DeviceKind::Mig, source, tracked.now()));
        tracked.observe(&id, &Observation::Passed);
        id
    }

    #[test]
    fn a_thousand_removed_instances_leave_no_device() {
        let mut tracked = tracked();
        for number in 0..1000 {
            let id = instance(&mut tracked, number);
            // The scan may miss the instance before or after the notice of its removal.
            if number % 2 == 0 {
                tracked.mark_removed(&id);
                tracked.mark_vanished(&id, "gone");
            } else {
                tracked.mark_vanished(&id, "gone");
                tracked.mark_removed(&id);
            }
        }
        assert!(tracked.devices().is_empty());
    }

    #[test]
    fn instances_that_vanished_last_are_kept_up_to_the_limit() {
        let mut tracked = tracked();
        for number in 0..1000 {
            let id = instance(&mut tracked, number);
            tracked.mark_vanished(&id, "gone");
        }
        let remaining = tracked.devices();
        assert_eq!(remaining.len(), MAX_VANISHED_INSTANCES);
        assert!(remaining.iter().all(|device| device.health.has_vanished()));
        assert!(remaining.iter().any(|device| device.id.as_str() == "MIG-999"));
    }
}
