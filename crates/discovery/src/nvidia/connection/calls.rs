//! Calls to the driver, and missed deadlines.

use tokio::time::Instant;
use windlass_core::{device::DeviceId, health::Observation};

use super::{
    super::{conditions::Moment, known::KnownDevices, listen, probe::Probe, procfs},
    CallResult, Connection, position,
    slot::Slot,
};

impl Connection {
    pub(super) fn mark_overdue(&mut self, now: Instant, known: &mut KnownDevices) {
        let deadline = self.policy.call_deadline;
        let why = format!("the driver did not answer within {deadline:?}");
        if self.round.call.became_overdue(now) {
            self.count_failed(why.clone(), known);
            self.probe_wanted_gpus(known);
        }
        if self.listing.became_overdue(now) {
            self.take_listing(Vec::new(), known);
        }
        for index in 0..self.slots.len() {
            if self.slots[index].call.became_overdue(now) {
                self.fail(index, Observation::Overdue(why.clone()), known);
            }
        }
    }

    /// Starts a round: counts the GPUs and compares procfs with the last round.
    pub(super) fn start_round(&mut self, now: Instant) {
        if self.round.call.begin(now, self.policy.call_deadline) {
            let (nvml, host) = (self.nvml.clone(), self.roots.host.clone());
            self.answers.spawn_blocking(move || {
                CallResult::Round(procfs::fingerprint(&host), nvml.gpu_count())
            });
        }
    }

    pub(super) fn probe_every_gpu(&mut self, now: Instant, known: &KnownDevices) {
        for index in 0..self.slots.len() {
            self.probe_gpu(index, now, known);
        }
    }

    /// Probes each GPU if the event wait failed. The caller has counted the GPUs again, or the count failed.
    pub(super) fn probe_wanted_gpus(&mut self, known: &KnownDevices) {
        if std::mem::take(&mut self.round.wants_gpus) {
            self.probe_every_gpu(Instant::now(), known);
        }
    }

    pub(super) fn probe_gpu(&mut self, index: usize, now: Instant, known: &KnownDevices) {
        let slot = &mut self.slots[index];
        if slot.call.begin(now, self.policy.call_deadline) {
            slot.joins = self.events.is_paused() && slot.is_missing_in(&self.event_set);
            let probe = Probe {
                nvml: self.nvml.clone(),
                driver: self.driver.clone(),
                roots: self.roots.clone(),
                moment: Moment { now: known.now(), recently: self.policy.quiet_period },
                index: position(index),
                known: slot.facts.clone(),
                earlier: self.earlier.clone(),
                settled: slot.has_no_obstacles(),
                watch_in: slot.joins.then(|| self.event_set.clone()),
            };
            self.answers.spawn_blocking(move || CallResult::Gpu(index, Box::new(probe.run())));
        }
    }

    /// Probes the GPUs that are to join the event set.
    pub(super) fn probe_left_out(&mut self, known: &KnownDevices) {
        for index in 0..self.slots.len() {
            if self.slots[index].is_missing_in(&self.event_set) {
                self.probe_gpu(index, Instant::now(), known);
            }
        }
    }

    /// Probes a GPU after a MIG task. A running probe may be outdated; another one follows it.
    pub(crate) fn probe_again(&mut self, gpu: &DeviceId, known: &KnownDevices) {
        let is_wanted = |slot: &Slot| slot.ids.first() == Some(gpu);
        let Some(index) = self.slots.iter().position(is_wanted) else { return };
        self.slots[index].probe_again = !self.slots[index].call.is_idle();
        self.probe_gpu(index, Instant::now(), known);
    }

    pub(super) fn probe_recovering(&mut self, now: Instant, known: &KnownDevices) {
        for index in 0..self.slots.len() {
            let recovery = known.next_recovery(&self.slots[index].ids);
            if recovery.is_some_and(|at| at <= known.now()) {
                self.probe_gpu(index, now, known);
            }
        }
    }

    /// Starts a listing of the GPUs in procfs.
    pub(super) fn start_listing(&mut self) {
        if self.listing.begin(Instant::now(), self.policy.call_deadline) {
            let roots = self.roots.clone();
            self.answers.spawn_blocking(move || CallResult::Listed(procfs::gpus(&roots)));
        }
    }

    pub(super) fn start_event_wait(&mut self, now: Instant) {
        let is_due = now >= self.round.events_created + self.policy.probe_interval;
        if !(self.round.wants_events && is_due) {
            return;
        }
        (self.round.wants_events, self.round.events_created) = (false, now);
        let (nvml, event_wait) = (self.nvml.clone(), self.policy.event_wait);
        self.answers.spawn_blocking(move || CallResult::Events(listen(&nvml, event_wait)));
    }
}
