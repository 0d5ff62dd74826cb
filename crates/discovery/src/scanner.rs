//! Lifecycle of scanned devices: schedule of scans, tracking, and health. All scanners share it; a scanner
//! implements only a single scan.
//!
//! ```text
//!             found twice in a row             missing twice in a row
//!   new      ──────────────────────> present ────────────────────────────> vanished
//!                                       ^                                     │
//!                                       └──────────── seen, quiet ────────────┘
//! ```
//!
//! A device vanishes only if two scans in a row miss it, the second soon after the first: files of a device in
//! reset may be unreadable for a moment. One scan suffices if another device has taken over its node, since a
//! container would otherwise get the other device. One scan also suffices if the device's parent is present.
//!
//! A new device needs two scans too: a scan during hotplug sees half a device and may derive a wrong id. The first
//! scan of a source needs no second one, so that the agent starts fast.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use tokio::{
    sync::{Notify, watch},
    task::{JoinHandle, spawn_blocking},
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;
use windlass_config::{HealthPolicy, Policy};
use windlass_core::{
    device::{Device, DeviceId, SourceName},
    health::{Health, HealthTracker, Observation, Reason},
    inventory::SourceState,
};
use windlass_host::{Host, PCI_DEVICES, clock::Clock, deadline, drm_nodes, or_pending};

use super::{Publisher, SourceSnapshot, log};

/// Scanner of the host's files for devices.
pub(super) trait Scanner: Send + 'static {
    /// Sources that the scanner serves; each scan reports the state of all of them.
    fn names(&self) -> Vec<SourceName>;

    /// Host folders that a scan requires, by default the folder of PCI functions. An unreadable one fails the scan.
    fn folders(&self) -> &'static [&'static str] {
        &[PCI_DEVICES]
    }

    /// Scans the host once. May block: it runs on its own thread.
    fn scan(&mut self, host: &Host) -> Scan;

    /// Applies a policy to later scans.
    fn apply_policy(&mut self, _: &Policy) {}

    /// Notifier of changes that neither host events nor the policy report.
    fn change_notifier(&self) -> Option<Arc<Notify>> {
        None
    }

    /// Quiet period of a device, if the scanner overrides the policy's.
    fn quiet_period(&self, _: &Device) -> Option<Duration> {
        None
    }
}

/// Result of a scan.
#[derive(Debug, Default)]
pub(super) struct Scan {
    pub(super) states: BTreeMap<SourceName, SourceState>,
    pub(super) devices: Vec<(Device, Observation)>,
    /// Sources whose scan failed: their devices are unknown rather than gone.
    pub(super) failed_sources: BTreeSet<SourceName>,
}

/// A scanner with its tracked devices.
pub(super) struct ScannerTask {
    scanner: Box<dyn Scanner>,
    host: Host,
    clock: Clock,
    health: HealthPolicy,
    states: BTreeMap<SourceName, SourceState>,
    tracked: BTreeMap<DeviceId, TrackedDevice>,
    /// New devices that the last scan found for the first time.
    new_devices: BTreeMap<DeviceId, Device>,
    /// True if the last scan missed a device or found a new one, so that an early scan follows.
    is_uncertain: bool,
    /// True if the last scan was an early one. A further early scan then waits longer.
    was_early: bool,
}

/// A device with its health.
struct TrackedDevice {
    device: Device,
    tracker: HealthTracker,
    /// Consecutive scans that missed the device.
    missed_scans: u32,
}

/// Events that trigger a scan.
#[derive(Clone)]
pub(super) struct ScanTriggers {
    pub(super) policies: watch::Receiver<Arc<Policy>>,
    /// Count of host events.
    pub(super) host_events: watch::Receiver<u64>,
}

/// Consecutive scans that must miss a device before it vanishes.
const MAX_MISSES: u32 = 2;

/// Delay of the second scan after a scan that missed a device or found a new one.
const EARLY_SCAN_DELAY: Duration = Duration::from_millis(100);

/// Time during which events are collected before a scan: binding a driver causes dozens.
const EVENT_DEBOUNCE: Duration = Duration::from_millis(20);

/// Shortest interval of scans that events trigger: a host with constant events is scanned twice a second.
const MIN_SCAN_INTERVAL: Duration = Duration::from_millis(500);

// === impl Scan ===

impl Scan {
    fn failed(names: Vec<SourceName>, error: &str) -> Self {
        let failed_sources = names.iter().cloned().collect();
        let failing = |name| (name, SourceState::Failing(error.to_owned()));
        let states = names.into_iter().map(failing).collect();
        Self { states, failed_sources, devices: Vec::new() }
    }
}

// === impl ScannerTask ===

impl ScannerTask {
    pub(super) fn new(scanner: Box<dyn Scanner>, host: Host, clock: Clock) -> Self {
        Self {
            scanner,
            host,
            clock,
            health: HealthPolicy::default(),
            states: BTreeMap::new(),
            tracked: BTreeMap::new(),
            new_devices: BTreeMap::new(),
            is_uncertain: false,
            was_early: false,
        }
    }

    /// Scans at once, on events and policy changes, and at the probe interval, until stopped. A scan may miss its
    /// deadline, since firmware answers some files: the source is then failing until the scan ends.
    pub(super) async fn run(
        mut self,
        mut triggers: ScanTriggers,
        publisher: Publisher,
        stop: CancellationToken,
    ) {
        let notifier = self.scanner.change_notifier();
        loop {
            self.apply_policy(&triggers);
            triggers.host_events.mark_unchanged();
            let deadline = self.health.call_deadline;
            let scan_handle = spawn_blocking(move || self.scan_and_apply());
            self = tokio::select! {
                () = stop.cancelled() => return,
                task = await_scan(scan_handle, deadline, &publisher) => task,
            };
            publisher.publish(self.snapshot());
            let delay = self.early_scan_delay();
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep(delay.unwrap_or_default()), if delay.is_some() => {}
                () = triggers.next_scan(self.health.probe_interval), if delay.is_none() => {}
                () = or_pending(notifier.as_deref().map(Notify::notified)), if delay.is_none() => {}
            }
        }
    }

    fn apply_policy(&mut self, triggers: &ScanTriggers) {
        let policy = triggers.policies.borrow().clone();
        self.health.clone_from(&policy.health);
        self.scanner.apply_policy(&policy);
    }

    /// Delay of an early scan, if the last scan was uncertain. If scans stay uncertain, the delay grows to the
    /// shortest interval of scans.
    fn early_scan_delay(&mut self) -> Option<Duration> {
        let delay = if self.was_early { MIN_SCAN_INTERVAL } else { EARLY_SCAN_DELAY };
        self.was_early = self.is_uncertain;
        self.was_early.then_some(delay)
    }

    /// One scan. An unreadable host leaves all devices unknown.
    fn scan(&mut self) -> Scan {
        let host = self.host.for_one_scan();
        let mut folders = self.scanner.folders().iter();
        if let Some(error) = folders.find_map(|folder| host.folder_error(folder)) {
            return Scan::failed(self.scanner.names(), &error);
        }
        let mut scan = self.scanner.scan(&host);
        // An unreadable function hides no other device. But if the scan found none, the function may be a device of
        // this source.
        if let Some(error) = host.pci_function_error().filter(|_| scan.devices.is_empty()) {
            return Scan::failed(self.scanner.names(), &error);
        }
        scan.devices.iter_mut().for_each(|(device, _)| drm_nodes::add_links(&host, device));
        scan
    }

    /// Scans once and applies the result to the tracked devices.
    fn scan_and_apply(mut self) -> Self {
        let Scan { states, devices: found_devices, failed_sources } = self.scan();
        let seen_once = std::mem::take(&mut self.new_devices);
        let mut seen_ids = self.apply_found(found_devices, &seen_once);
        for (source, state) in
            states.iter().filter(|(name, state)| self.states.get(*name) != Some(state))
        {
            log::source_changed(source, state);
        }
        self.states = states;
        let has_failed_source = |device: &Device| failed_sources.contains(&device.source);
        let devices = self.tracked.values().map(|tracked| &tracked.device);
        seen_ids.extend(
            devices.filter(|device| has_failed_source(device)).map(|device| device.id.clone()),
        );
        let replaced_ids = self.replaced_devices(&seen_ids);
        self.apply_missed(&seen_ids, &replaced_ids);
        let is_missed = |tracked: &TrackedDevice| {
            (1..MAX_MISSES).contains(&tracked.missed_scans) && !has_failed_source(&tracked.device)
        };
        self.is_uncertain = !self.new_devices.is_empty() || self.tracked.values().any(is_missed);
        self.new_devices
            .extend(seen_once.into_iter().filter(|(_, device)| has_failed_source(device)));
        // Devices of removed sources are dropped.
        let states = &self.states;
        self.tracked.retain(|_, tracked| states.contains_key(&tracked.device.source));
        self
    }

    /// Applies found devices and returns their ids. A device outside `seen_once` that is not tracked becomes a new
    /// device, unless this is the first scan of its source.
    fn apply_found(
        &mut self,
        found_devices: Vec<(Device, Observation)>,
        seen_once: &BTreeMap<DeviceId, Device>,
    ) -> BTreeSet<DeviceId> {
        let mut seen_ids = BTreeSet::new();
        for (device, observation) in found_devices {
            // The first device with a duplicate id counts.
            if !seen_ids.insert(device.id.clone()) {
                continue;
            }
            let was_found =
                self.tracked.contains_key(&device.id) || seen_once.contains_key(&device.id);
            if was_found || !self.states.contains_key(&device.source) {
                self.track(device, &observation);
            } else {
                self.new_devices.insert(device.id.clone(), device);
            }
        }
        seen_ids
    }

    fn track(&mut self, device: Device, observation: &Observation) {
        let (now, quiet_period) = (self.clock.now(), self.quiet_period(&device));
        let new_entry = || TrackedDevice {
            device: device.clone(),
            tracker: HealthTracker::new(quiet_period, now),
            missed_scans: 0,
        };
        let tracked = self.tracked.entry(device.id.clone()).or_insert_with(new_entry);
        tracked.tracker.set_quiet_period(quiet_period);
        tracked.observe(observation, now);
        (tracked.missed_scans, tracked.device) = (0, device);
    }

    /// Missing devices that are certainly gone: a present device has one of their nodes, or their parent is present
    /// without them.
    fn replaced_devices(&self, seen_ids: &BTreeSet<DeviceId>) -> BTreeSet<DeviceId> {
        let present = self.tracked.values().map(|tracked| &tracked.device);
        let present =
            present.filter(|device| seen_ids.contains(&device.id)).chain(self.new_devices.values());
        let nodes = present.flat_map(Device::own_nodes);
        let taken_paths: BTreeSet<_> = nodes.map(|node| &node.path).collect();
        let is_replaced = |device: &Device| {
            device.parent.as_ref().is_some_and(|parent| seen_ids.contains(parent))
                || device.own_nodes().any(|node| taken_paths.contains(&node.path))
        };
        let missing = self.tracked.iter().filter(|(id, _)| !seen_ids.contains(*id));
        missing
            .filter(|(_, tracked)| is_replaced(&tracked.device))
            .map(|(id, _)| id.clone())
            .collect()
    }

    fn apply_missed(&mut self, seen_ids: &BTreeSet<DeviceId>, replaced_ids: &BTreeSet<DeviceId>) {
        let now = self.clock.now();
        for (id, tracked) in self.tracked.iter_mut().filter(|(id, _)| !seen_ids.contains(*id)) {
            let step = if replaced_ids.contains(id) { MAX_MISSES } else { 1 };
            tracked.missed_scans = tracked.missed_scans.saturating_add(step);
            if tracked.missed_scans >= MAX_MISSES {
                let vanished = Observation::Failed(Reason::Vanished, "no longer there".to_owned());
                tracked.observe(&vanished, now);
            }
        }
    }

    fn quiet_period(&self, device: &Device) -> Duration {
        self.scanner.quiet_period(device).unwrap_or(self.health.quiet_period)
    }

    fn snapshot(&self) -> SourceSnapshot {
        SourceSnapshot {
            states: self.states.clone(),
            simulated: self.host.simulated(),
            devices: self.tracked.values().map(TrackedDevice::device).collect(),
        }
    }
}

// === impl ScanTriggers ===

impl ScanTriggers {
    /// Waits for a policy change, a host event or the end of the probe interval. After an event, waits for
    /// [`EVENT_DEBOUNCE`] and until [`MIN_SCAN_INTERVAL`] has passed since the last scan.
    async fn next_scan(&mut self, probe_interval: Duration) {
        let last_scan = Instant::now();
        let regular_scan = last_scan + probe_interval;
        let (mut next_scan, mut has_event) = (regular_scan, false);
        loop {
            tokio::select! {
                () = sleep_until(next_scan) => return,
                Ok(()) = self.policies.changed() => return,
                Ok(()) = self.host_events.changed(), if !has_event => {
                    let after_debounce = Instant::now() + EVENT_DEBOUNCE;
                    let after_debounce = after_debounce.max(last_scan + MIN_SCAN_INTERVAL);
                    (next_scan, has_event) = (regular_scan.min(after_debounce), true);
                }
            }
        }
    }
}

// === impl TrackedDevice ===

impl TrackedDevice {
    fn observe(&mut self, observation: &Observation, now: Timestamp) {
        if let Some(from) = self.tracker.observe(observation, now) {
            log::health_changed(&self.device.id, from, self.tracker.health());
        }
    }

    fn device(&self) -> Device {
        let health: &Health = self.tracker.health();
        Device { health: health.clone(), ..self.device.clone() }
    }
}

/// Waits for a scan without a limit. Publishes a failing source once the deadline has passed.
async fn await_scan(
    mut scan_handle: JoinHandle<ScannerTask>,
    deadline: Duration,
    publisher: &Publisher,
) -> ScannerTask {
    let timely_result = deadline::timeout(deadline, &mut scan_handle).await;
    let result = if let Ok(result) = timely_result {
        result
    } else {
        publisher.publish_timeout(&format!("the host did not answer within {deadline:?}"));
        scan_handle.await
    };
    result.expect("a scan neither panics nor is cancelled")
}

#[cfg(test)]
mod tests;
