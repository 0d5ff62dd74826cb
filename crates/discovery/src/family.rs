//! Devices that are found by looking: the life that all such sources share.
//!
//! A family says what it sees at one look. What it saw before, how healthy each device has been since,
//! and when to look again is the same for all, and is here.
//!
//! ```text
//!             found twice in a row             missing twice in a row
//!   newcomer ──────────────────────> present ────────────────────────────> vanished
//!                                       ^                                     │
//!                                       └──────────── seen, quiet ────────────┘
//! ```
//!
//! A device is missed only when two looks in a row have not found it, the second soon after the first: a
//! file of a device that is being reset may be unreadable for a moment. One look is enough where another
//! device was found in its place: who has it would get the other.
//!
//! A newcomer is believed by the same measure. Of a device that comes or goes under a look only half is
//! seen, and what is not seen may be its name: it would be found as another, which never was. What a
//! source finds at its first look is believed at once; nobody waits for an agent's start.

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
use windlass_host::{Host, clock::Clock, deadline};

use super::{Publisher, SourceSnapshot, graphics, log};

/// Devices of one sort, and how to find them.
pub(super) trait Family: Send + 'static {
    /// The sources that the devices are of, all of which a look speaks of.
    fn names(&self) -> Vec<SourceName>;

    /// The folders of the host without which a look tells nothing: of most families, that of PCI functions.
    fn folders(&self) -> &'static [&'static str] {
        &[PCI]
    }

    /// Looks at the host once. May block: it runs on a thread of its own.
    fn look(&mut self, host: &Host) -> Look;

    /// Takes up another policy; the next look goes by it.
    fn adopt(&mut self, _: &Policy) {}

    /// What is notified when a look would find something else, though neither host nor policy tell of it.
    fn news(&self) -> Option<Arc<Notify>> {
        None
    }

    /// How long a device must be without trouble, where its family knows better than the policy.
    fn quiet_period(&self, _: &Device) -> Option<Duration> {
        None
    }
}

/// What one look found.
#[derive(Debug, Default)]
pub(super) struct Look {
    /// How each source fares.
    pub(super) states: BTreeMap<SourceName, SourceState>,
    /// The devices that are there, and how each does.
    pub(super) found: Vec<(Device, Observation)>,
    /// The sources that could not look: nothing is known of what they have, not that it is gone.
    pub(super) unanswered: BTreeSet<SourceName>,
}

/// A family with what is known of its devices.
pub(super) struct Watched<F> {
    family: F,
    host: Host,
    clock: Clock,
    health: HealthPolicy,
    states: BTreeMap<SourceName, SourceState>,
    known: BTreeMap<DeviceId, Known>,
    /// What the last look found and none before it.
    newcomers: BTreeMap<DeviceId, Device>,
    /// Whether the last look missed a device that may be there yet, or found one that may be none.
    is_unsure: bool,
    /// Whether it came soon after the one before.
    looked_again: bool,
}

/// A device that was seen.
struct Known {
    device: Device,
    tracker: HealthTracker,
    /// Looks in a row that did not find it.
    missed: u32,
}

/// What wakes a source.
#[derive(Clone)]
pub(super) struct Wakes {
    /// Another policy.
    pub(super) policies: watch::Receiver<Arc<Policy>>,
    /// Something about the host's devices changed.
    pub(super) host: watch::Receiver<u64>,
}

/// Where the kernel lists PCI functions.
pub(super) const PCI: &str = "/sys/bus/pci/devices";

/// Looks that have to miss a device before it counts as gone.
const MISSES: u32 = 2;

/// How soon the second look is after one that missed a device, or found another.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Notices come in bursts: a driver that is bound makes dozens.
const BURST: Duration = Duration::from_millis(20);

/// How long no notice leads to a look after one: a host that never rests is looked at twice a second.
const REST: Duration = Duration::from_millis(500);

// === impl Look ===

impl Look {
    fn refused(names: Vec<SourceName>, why: &str) -> Self {
        let unanswered = names.iter().cloned().collect();
        let failing = |name| (name, SourceState::Failing(why.to_owned()));
        let states = names.into_iter().map(failing).collect();
        Self { states, unanswered, found: Vec::new() }
    }
}

// === impl Watched ===

impl<F: Family> Watched<F> {
    pub(super) fn new(family: F, host: Host, clock: Clock) -> Self {
        let (health, states, known, newcomers) = Default::default();
        let (is_unsure, looked_again) = (false, false);
        Self { family, host, clock, health, states, known, newcomers, is_unsure, looked_again }
    }

    /// Looks at once, when there is news of the host or of the policy, and at the probe interval, until
    /// stopped. Some files are answered by a device's firmware: a look that takes too long is waited
    /// for, and said.
    pub(super) async fn run(mut self, mut wakes: Wakes, to: Publisher, stop: CancellationToken) {
        let news = self.family.news();
        loop {
            self.adopt(&wakes);
            wakes.host.mark_unchanged();
            let deadline = self.health.call_deadline;
            let looking = spawn_blocking(move || self.looked());
            self = tokio::select! {
                () = stop.cancelled() => return,
                looked = waited_for(looking, deadline, &to) => looked,
            };
            to.publish(self.snapshot());
            let again = self.look_again();
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep(again.unwrap_or_default()), if again.is_some() => {}
                () = wakes.next_look(self.health.probe_interval), if again.is_none() => {}
                () = notified(news.as_deref()), if again.is_none() => {}
            }
        }
    }

    fn adopt(&mut self, wakes: &Wakes) {
        let policy = wakes.policies.borrow().clone();
        self.health.clone_from(&policy.health);
        self.family.adopt(&policy);
    }

    /// How soon the next look is, whatever else there is news of: what a look is not sure of needs a second one,
    /// and not at once. A host that always has something to be unsure of is not looked at more often than any.
    fn look_again(&mut self) -> Option<Duration> {
        let pause = if self.looked_again { REST } else { LOOK_AGAIN };
        self.looked_again = self.is_unsure;
        self.looked_again.then_some(pause)
    }

    /// One look. Where the host does not let it be, nothing is known, and least of all that there is nothing.
    fn look(&mut self) -> Look {
        let host = self.host.for_one_look();
        let mut folders = self.family.folders().iter();
        if let Some(why) = folders.find_map(|folder| host.refusal(folder)) {
            return Look::refused(self.family.names(), &why);
        }
        let mut look = self.family.look(&host);
        // One function that cannot be read hides no other; where there is no other, it may be what is meant.
        if let Some(why) = host.unread_function().filter(|_| look.found.is_empty()) {
            return Look::refused(self.family.names(), &why);
        }
        look.found.iter_mut().for_each(|(device, _)| graphics::name(&host, device));
        look
    }

    /// One look, taken in.
    fn looked(mut self) -> Self {
        let Look { states, found, unanswered } = self.look();
        let before = std::mem::take(&mut self.newcomers);
        let mut seen = self.meet(found, &before);
        for (source, state) in states.iter().filter(|(name, it)| self.states.get(*name) != Some(it))
        {
            log::source_changed(source, state);
        }
        self.states = states;
        let of_unanswered = |device: &Device| unanswered.contains(&device.source);
        let devices = self.known.values().map(|known| &known.device);
        seen.extend(devices.filter(|device| of_unanswered(device)).map(|device| device.id.clone()));
        let replaced = self.replaced(&seen);
        self.miss(&seen, &replaced);
        let is_missed =
            |known: &Known| (1..MISSES).contains(&known.missed) && !of_unanswered(&known.device);
        self.is_unsure = !self.newcomers.is_empty() || self.known.values().any(is_missed);
        self.newcomers.extend(before.into_iter().filter(|(_, device)| of_unanswered(device)));
        // What a source that is there no longer has found is nobody's.
        let states = &self.states;
        self.known.retain(|_, known| states.contains_key(&known.device.source));
        self
    }

    /// Takes in what a look found, and gives all of it; what none has found before it is a newcomer.
    fn meet(
        &mut self,
        found: Vec<(Device, Observation)>,
        before: &BTreeMap<DeviceId, Device>,
    ) -> BTreeSet<DeviceId> {
        let mut seen = BTreeSet::new();
        for (device, observation) in found {
            // Of two that go by one id the first has it; a family tells its devices apart.
            if !seen.insert(device.id.clone()) {
                continue;
            }
            let was_found = self.known.contains_key(&device.id) || before.contains_key(&device.id);
            if was_found || !self.states.contains_key(&device.source) {
                self.see(device, &observation);
            } else {
                self.newcomers.insert(device.id.clone(), device);
            }
        }
        seen
    }

    fn see(&mut self, device: Device, observation: &Observation) {
        let (now, quiet) = (self.clock.now(), self.quiet_period(&device));
        let fresh =
            || Known { device: device.clone(), tracker: HealthTracker::new(quiet, now), missed: 0 };
        let known = self.known.entry(device.id.clone()).or_insert_with(fresh);
        known.tracker.set_quiet_period(quiet);
        known.observe(observation, now);
        (known.missed, known.device) = (0, device);
    }

    /// The devices that are certainly gone: a device that is there has one of their nodes, or they were
    /// parts of one that is there and no longer has them.
    fn replaced(&self, seen: &BTreeSet<DeviceId>) -> BTreeSet<DeviceId> {
        let there = self.known.values().map(|known| &known.device);
        let there = there.filter(|device| seen.contains(&device.id)).chain(self.newcomers.values());
        let nodes = there.flat_map(Device::own_nodes);
        let taken: BTreeSet<_> = nodes.map(|node| &node.path).collect();
        let is_replaced = |device: &Device| {
            device.parent.as_ref().is_some_and(|whole| seen.contains(whole))
                || device.own_nodes().any(|node| taken.contains(&node.path))
        };
        let missing = self.known.iter().filter(|(id, _)| !seen.contains(*id));
        missing.filter(|(_, known)| is_replaced(&known.device)).map(|(id, _)| id.clone()).collect()
    }

    fn miss(&mut self, seen: &BTreeSet<DeviceId>, replaced: &BTreeSet<DeviceId>) {
        let now = self.clock.now();
        for (id, known) in self.known.iter_mut().filter(|(id, _)| !seen.contains(*id)) {
            let step = if replaced.contains(id) { MISSES } else { 1 };
            known.missed = known.missed.saturating_add(step);
            if known.missed >= MISSES {
                let gone = Observation::Failed(Reason::Vanished, "no longer there".to_owned());
                known.observe(&gone, now);
            }
        }
    }

    fn quiet_period(&self, device: &Device) -> Duration {
        self.family.quiet_period(device).unwrap_or(self.health.quiet_period)
    }

    fn snapshot(&self) -> SourceSnapshot {
        SourceSnapshot {
            states: self.states.clone(),
            simulated: self.host.simulated(),
            devices: self.known.values().map(Known::device).collect(),
        }
    }
}

// === impl Wakes ===

impl Wakes {
    /// Waits, after a look, for the next: at another policy, after the pause, and at a notice from the host.
    /// The first notice after a rest is followed at once.
    async fn next_look(&mut self, pause: Duration) {
        let looked = Instant::now();
        let regular = looked + pause;
        let (mut next, mut is_noticed) = (regular, false);
        loop {
            tokio::select! {
                () = sleep_until(next) => return,
                Ok(()) = self.policies.changed() => return,
                Ok(()) = self.host.changed(), if !is_noticed => {
                    let after_burst = (Instant::now() + BURST).max(looked + REST);
                    (next, is_noticed) = (regular.min(after_burst), true);
                }
            }
        }
    }
}

// === impl Known ===

impl Known {
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

/// Waits for a notice; where there is nobody to give one, in vain.
async fn notified(news: Option<&Notify>) {
    match news {
        Some(news) => news.notified().await,
        None => std::future::pending().await,
    }
}

/// Waits for a look, however long it takes; one that is late is said to be.
async fn waited_for<F>(
    mut looking: JoinHandle<Watched<F>>,
    deadline: Duration,
    to: &Publisher,
) -> Watched<F> {
    let in_time = deadline::timeout(deadline, &mut looking).await;
    let looked = if let Ok(looked) = in_time {
        looked
    } else {
        to.publish_late(&format!("the host did not answer within {deadline:?}"));
        looking.await
    };
    looked.expect("looking neither panics nor is cancelled")
}

#[cfg(test)]
mod tests;
