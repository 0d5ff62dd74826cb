//! Devices that are found by looking: the life that all such sources share.
//!
//! A family says what it sees at one look. What it saw before, how healthy each device has been since,
//! and when to look again is the same for all, and is here.
//!
//! ```text
//!            seen                      missing twice in a row
//!   ───────────────────> present ────────────────────────────> vanished
//!                           ^                                     │
//!                           └──────────── seen, quiet ────────────┘
//! ```
//!
//! A device is missed only when two looks in a row have not found it, the second soon after the first: a
//! file of a device that is being reset may be unreadable for a moment.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use tokio::{
    sync::watch,
    task::{JoinHandle, spawn_blocking},
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;
use windlass_core::{
    device::{Device, DeviceId, SourceName},
    health::{Health, HealthTracker, Observation, Reason},
    inventory::SourceState,
};

use super::{Publisher, SourceSnapshot, log};
use crate::{
    clock::Clock,
    config::{HealthPolicy, Policy},
    host::Host,
};

/// Devices of one sort, and how to find them.
pub(super) trait Family: Send + 'static {
    /// The sources that the devices are of, all of which a look speaks of.
    fn names(&self) -> Vec<SourceName>;

    /// Looks at the host once. May block: it runs on a thread of its own.
    fn look(&mut self, host: &Host) -> Look;

    /// Takes up another policy; the next look goes by it.
    fn adopt(&mut self, _: &Policy) {}

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
}

/// A family with what is known of its devices.
pub(super) struct Watched<F> {
    family: F,
    host: Host,
    clock: Clock,
    health: HealthPolicy,
    states: BTreeMap<SourceName, SourceState>,
    known: BTreeMap<DeviceId, Known>,
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

/// Looks that have to miss a device before it counts as gone.
const MISSES: u32 = 2;

/// How soon after a miss the second look is.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Notices come in bursts: a driver that is bound makes dozens.
const BURST: Duration = Duration::from_millis(20);

// === impl Watched ===

impl<F: Family> Watched<F> {
    pub(super) fn new(family: F, host: Host, clock: Clock) -> Self {
        let (health, states, known) = Default::default();
        Self { family, host, clock, health, states, known }
    }

    /// Looks at once, when there is news of the host or of the policy, and at the probe interval, until
    /// stopped. Some files are answered by a device's firmware: a look that takes too long is waited
    /// for, and said.
    pub(super) async fn run(mut self, mut wakes: Wakes, to: Publisher, stop: CancellationToken) {
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
            let pause = if self.is_unsure() { LOOK_AGAIN } else { self.health.probe_interval };
            let next = Instant::now() + pause;
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep_until(next) => {}
                Ok(()) = wakes.policies.changed() => {}
                Ok(()) = wakes.host.changed() => tokio::time::sleep(BURST).await,
            }
        }
    }

    fn adopt(&mut self, wakes: &Wakes) {
        let policy = wakes.policies.borrow().clone();
        self.health.clone_from(&policy.health);
        self.family.adopt(&policy);
    }

    /// Whether a device was missed that may be there yet.
    fn is_unsure(&self) -> bool {
        self.known.values().any(|known| (1..MISSES).contains(&known.missed))
    }

    /// One look, taken in.
    fn looked(mut self) -> Self {
        let Look { states, found } = self.family.look(&self.host);
        self.states = states;
        let mut seen = BTreeSet::new();
        for (device, observation) in found {
            // Of two that go by one id the first has it; a family tells its devices apart.
            if seen.insert(device.id.clone()) {
                self.see(device, &observation);
            }
        }
        self.miss(&seen);
        self
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

    fn miss(&mut self, seen: &BTreeSet<DeviceId>) {
        let now = self.clock.now();
        for (_, known) in self.known.iter_mut().filter(|(id, _)| !seen.contains(*id)) {
            known.missed = known.missed.saturating_add(1);
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

/// Waits for a look, however long it takes; one that is late is said to be.
async fn waited_for<F>(
    mut looking: JoinHandle<Watched<F>>,
    deadline: Duration,
    to: &Publisher,
) -> Watched<F> {
    let in_time = timeout(deadline, &mut looking).await;
    let looked = if let Ok(looked) = in_time {
        looked
    } else {
        to.publish_late(&format!("the host did not answer within {deadline:?}"));
        looking.await
    };
    looked.expect("looking neither panics nor is cancelled")
}
