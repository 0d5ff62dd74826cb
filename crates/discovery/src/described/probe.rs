//! Health probes of configured devices: one task per device, outside the scan.
//!
//! ```text
//!   scan ── probes: device -> spec ──> Prober ──> one task per device
//!    ^                                    │
//!    └── results: device -> result <──────┘
//! ```
//!
//! Health is *awaited* until the first result. A probe reports a failure after the configured number of consecutive
//! failed attempts.

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

use attempt::{AttemptEnv, PendingRead, run_attempt};

pub(super) use attempt::ProbeSpec;

pub(super) type ProbeResult = Result<(), (Reason, String)>;

pub(super) type ProbeSpecs = BTreeMap<DeviceId, ProbeSpec>;

/// Last reported result of each probed device.
type ProbeResults = BTreeMap<DeviceId, ProbeResult>;

/// Scan side of the prober: sets probes and reads results.
#[derive(Debug)]
pub(super) struct ProbeHandle {
    specs: watch::Sender<Arc<ProbeSpecs>>,
    results: watch::Receiver<Arc<ProbeResults>>,
    change_notifier: Arc<Notify>,
}

/// Task that runs all probes.
pub(crate) struct Prober {
    host: Host,
    specs: watch::Receiver<Arc<ProbeSpecs>>,
    results: watch::Sender<Arc<ProbeResults>>,
    change_notifier: Arc<Notify>,
    schedules: BTreeMap<DeviceId, ProbeSchedule>,
    tasks: JoinSet<AttemptOutcome>,
    /// Generation of the newest probe; distinguishes results of replaced probes.
    generation: u64,
}

/// Schedule of one device's probe.
struct ProbeSchedule {
    spec: ProbeSpec,
    generation: u64,
    /// Next start; `None` while the probe runs.
    next_start: Option<Instant>,
    /// Consecutive failed attempts.
    failures: u32,
    /// Unfinished read of an earlier attempt.
    pending: PendingRead,
}

struct AttemptOutcome {
    device: DeviceId,
    generation: u64,
    result: ProbeResult,
    pending: PendingRead,
}

/// Both sides of the prober.
pub(super) fn channel(host: Host) -> (ProbeHandle, Prober) {
    let change_notifier = Arc::new(Notify::new());
    let (specs, spec_receiver) = watch::channel(Arc::default());
    let (result_sender, results) = watch::channel(Arc::default());
    let handle = ProbeHandle { specs, results, change_notifier: change_notifier.clone() };
    let prober = Prober {
        host,
        specs: spec_receiver,
        results: result_sender,
        change_notifier,
        schedules: BTreeMap::new(),
        tasks: JoinSet::new(),
        generation: 0,
    };
    (handle, prober)
}

// === impl ProbeHandle ===

impl ProbeHandle {
    /// Notifier of changed results.
    pub(super) fn change_notifier(&self) -> Arc<Notify> {
        self.change_notifier.clone()
    }

    pub(super) fn observation(&self, device: &Device) -> Observation {
        match self.results.borrow().get(&device.id) {
            None => Observation::Pending,
            Some(Ok(())) => Observation::Passed,
            Some(Err((reason, detail))) => Observation::Failed(*reason, detail.clone()),
        }
    }

    pub(super) fn set(&self, specs: ProbeSpecs) {
        windlass_host::watch::publish_if_changed(&self.specs, Arc::new(specs));
    }
}

// === impl Prober ===

impl Prober {
    /// Runs probes until stopped; then drops running attempts, programs included.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        loop {
            self.start_due();
            let next_start =
                self.schedules.values().filter_map(|schedule| schedule.next_start).min();
            tokio::select! {
                () = stop.cancelled() => return,
                Ok(()) = self.specs.changed() => self.apply_specs(),
                Some(outcome) = self.tasks.join_next(), if !self.tasks.is_empty() => {
                    self.apply_outcome(outcome.expect("probing neither panics nor is cancelled"));
                }
                () = sleep_until(next_start.unwrap_or_else(Instant::now)),
                    if next_start.is_some() => {}
            }
        }
    }

    /// Applies a new set of probes: unchanged ones continue, new ones start at once.
    fn apply_specs(&mut self) {
        let specs = self.specs.borrow_and_update().clone();
        self.schedules.retain(|device, schedule| specs.get(device) == Some(&schedule.spec));
        for (device, spec) in specs.iter() {
            if !self.schedules.contains_key(device) {
                self.generation += 1;
                let schedule = ProbeSchedule::new(spec.clone(), self.generation);
                self.schedules.insert(device.clone(), schedule);
                self.set_result(device, None);
            }
        }
        let mut results = self.results.borrow().as_ref().clone();
        results.retain(|device, _| specs.contains_key(device));
        windlass_host::watch::publish_if_changed(&self.results, Arc::new(results));
    }

    fn start_due(&mut self) {
        let now = Instant::now();
        for (device, schedule) in &mut self.schedules {
            if schedule.next_start.is_none_or(|start| start > now) {
                continue;
            }
            schedule.next_start = None;
            let (device, generation) = (device.clone(), schedule.generation);
            let env =
                AttemptEnv { host: self.host.clone(), pending: mem::take(&mut schedule.pending) };
            let spec = schedule.spec.clone();
            self.tasks.spawn(async move {
                let (result, pending) = run_attempt(&device, &spec, env).await;
                AttemptOutcome { device, generation, result, pending }
            });
        }
    }

    fn apply_outcome(
        &mut self,
        AttemptOutcome { device, generation, result, pending }: AttemptOutcome,
    ) {
        // The outcome of a replaced probe is dropped.
        let Some(schedule) =
            self.schedules.get_mut(&device).filter(|schedule| schedule.generation == generation)
        else {
            return;
        };
        schedule.pending = pending;
        schedule.next_start = Some(Instant::now() + schedule.spec.interval);
        schedule.failures = if result.is_ok() { 0 } else { schedule.failures.saturating_add(1) };
        if result.is_ok() || schedule.failures >= schedule.spec.failure_threshold {
            self.set_result(&device, Some(result));
        }
    }

    fn set_result(&self, device: &DeviceId, result: Option<ProbeResult>) {
        let mut results = self.results.borrow().as_ref().clone();
        match result {
            Some(result) => drop(results.insert(device.clone(), result)),
            None => drop(results.remove(device)),
        }
        if windlass_host::watch::publish_if_changed(&self.results, Arc::new(results)) {
            self.change_notifier.notify_one();
        }
    }
}

// === impl ProbeSchedule ===

impl ProbeSchedule {
    fn new(spec: ProbeSpec, generation: u64) -> Self {
        Self {
            spec,
            generation,
            next_start: Some(Instant::now()),
            failures: 0,
            pending: PendingRead::default(),
        }
    }
}

/// Minimum probe interval. Shorter configured intervals are raised to it.
pub(super) const MIN_PROBE_INTERVAL: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests;
