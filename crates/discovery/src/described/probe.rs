//! Health probes of configured devices: one task per device, outside the scan.
//!
//! ```text
//!   scan ── probes: device -> test ──> Prober ──> one task per device
//!    ^                                    │
//!    └── results: device -> outcome <─────┘
//! ```
//!
//! Health is *awaited* until the first result. A failure counts after the configured number of failures in a row.

mod attempt;

use std::{collections::BTreeMap, mem, sync::Arc, time::Duration};

use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;
use windlass_core::{
    device::{Device, DeviceId},
    health::{Observation, Reason},
};
use windlass_host::Host;

use attempt::{AttemptEnv, PendingRead, attempt};

pub(super) use attempt::ProbeSpec;

pub(super) type ProbeResult = Result<(), (Reason, String)>;

pub(super) type ProbeSpecs = BTreeMap<DeviceId, ProbeSpec>;

/// Last counted result of each probed device.
type ProbeResults = BTreeMap<DeviceId, ProbeResult>;

/// Scan side of the prober: sets probes and reads results.
#[derive(Debug)]
pub(super) struct ProbeHandle {
    specs: watch::Sender<Arc<ProbeSpecs>>,
    results: watch::Receiver<Arc<ProbeResults>>,
    news: Arc<Notify>,
}

/// Task that runs all probes.
pub(crate) struct Prober {
    host: Host,
    specs: watch::Receiver<Arc<ProbeSpecs>>,
    results: watch::Sender<Arc<ProbeResults>>,
    news: Arc<Notify>,
    schedules: BTreeMap<DeviceId, ProbeSchedule>,
    tasks: JoinSet<AttemptOutcome>,
    /// Number of the newest probe; distinguishes results of replaced probes.
    round: u64,
}

/// Schedule of one device's probe.
struct ProbeSchedule {
    spec: ProbeSpec,
    round: u64,
    /// Next start; `None` while the probe runs.
    due: Option<Instant>,
    /// Failures in a row.
    failures: u32,
    /// Unfinished read of an earlier attempt.
    pending: PendingRead,
}

struct AttemptOutcome {
    device: DeviceId,
    round: u64,
    result: ProbeResult,
    pending: PendingRead,
}

/// Both sides of the prober.
pub(super) fn channel(host: Host) -> (ProbeHandle, Prober) {
    let news = Arc::new(Notify::new());
    let (specs, wanted) = watch::channel(Arc::default());
    let (published, results) = watch::channel(Arc::default());
    let handle = ProbeHandle { specs, results, news: news.clone() };
    let prober = Prober {
        host,
        specs: wanted,
        results: published,
        news,
        schedules: BTreeMap::new(),
        tasks: JoinSet::new(),
        round: 0,
    };
    (handle, prober)
}

// === impl ProbeHandle ===

impl ProbeHandle {
    /// Notifier of changed results.
    pub(super) fn news(&self) -> Arc<Notify> {
        self.news.clone()
    }

    pub(super) fn observation(&self, device: &Device) -> Observation {
        match self.results.borrow().get(&device.id) {
            None => Observation::Awaited,
            Some(Ok(())) => Observation::Passed,
            Some(Err((reason, detail))) => Observation::Failed(*reason, detail.clone()),
        }
    }

    pub(super) fn set(&self, specs: ProbeSpecs) {
        windlass_host::watch::publish(&self.specs, Arc::new(specs));
    }
}

// === impl Prober ===

impl Prober {
    /// Runs probes until stopped; then drops running attempts, programs included.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        loop {
            self.start_due();
            let next = self.schedules.values().filter_map(|schedule| schedule.due).min();
            tokio::select! {
                () = stop.cancelled() => return,
                Ok(()) = self.specs.changed() => self.adopt(),
                Some(outcome) = self.tasks.join_next(), if !self.tasks.is_empty() => {
                    self.take(outcome.expect("probing neither panics nor is cancelled"));
                }
                () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {}
            }
        }
    }

    /// Applies a new set of probes: unchanged ones continue, new ones start at once.
    fn adopt(&mut self) {
        let specs = self.specs.borrow_and_update().clone();
        self.schedules.retain(|device, schedule| specs.get(device) == Some(&schedule.spec));
        for (device, spec) in specs.iter() {
            if !self.schedules.contains_key(device) {
                self.round += 1;
                let schedule = ProbeSchedule::new(spec.clone(), self.round);
                self.schedules.insert(device.clone(), schedule);
                self.set_result(device, None);
            }
        }
        let mut results = self.results.borrow().as_ref().clone();
        results.retain(|device, _| specs.contains_key(device));
        windlass_host::watch::publish(&self.results, Arc::new(results));
    }

    fn start_due(&mut self) {
        let now = Instant::now();
        for (device, schedule) in &mut self.schedules {
            if schedule.due.is_none_or(|due| due > now) {
                continue;
            }
            schedule.due = None;
            let (device, round) = (device.clone(), schedule.round);
            let env =
                AttemptEnv { host: self.host.clone(), pending: mem::take(&mut schedule.pending) };
            let spec = schedule.spec.clone();
            self.tasks.spawn(async move {
                let (result, pending) = attempt(&device, &spec, env).await;
                AttemptOutcome { device, round, result, pending }
            });
        }
    }

    fn take(&mut self, AttemptOutcome { device, round, result, pending }: AttemptOutcome) {
        // The probe was replaced meanwhile.
        let Some(schedule) =
            self.schedules.get_mut(&device).filter(|schedule| schedule.round == round)
        else {
            return;
        };
        schedule.pending = pending;
        schedule.due = Some(Instant::now() + schedule.spec.every);
        schedule.failures = if result.is_ok() { 0 } else { schedule.failures.saturating_add(1) };
        if result.is_ok() || schedule.failures >= schedule.spec.failures {
            self.set_result(&device, Some(result));
        }
    }

    fn set_result(&self, device: &DeviceId, result: Option<ProbeResult>) {
        let mut results = self.results.borrow().as_ref().clone();
        match result {
            Some(result) => drop(results.insert(device.clone(), result)),
            None => drop(results.remove(device)),
        }
        if windlass_host::watch::publish(&self.results, Arc::new(results)) {
            self.news.notify_one();
        }
    }
}

// === impl ProbeSchedule ===

impl ProbeSchedule {
    fn new(spec: ProbeSpec, round: u64) -> Self {
        Self {
            spec,
            round,
            due: Some(Instant::now()),
            failures: 0,
            pending: PendingRead::default(),
        }
    }
}

/// Shortest probe interval. A shorter configured one is raised to it.
pub(super) const SHORTEST: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests;
