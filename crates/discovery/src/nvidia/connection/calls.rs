//! Calls to the driver, and missed deadlines.

use tokio::time::Instant;
use windlass_core::{device::DeviceId, health::Observation};

use super::{
    super::{conditions::ProbeTime, probe::Probe, procfs, start_listener, tracked::TrackedDevices},
    CallResult, Connection, nvml_index,
    slot::Slot,
};

impl Connection {
    /// Applies deadlines that were missed since the last call.
    pub(super) fn mark_overdue(&mut self, now: Instant, tracked: &mut TrackedDevices) {
        let deadline = self.policy.health.call_deadline;
        let error = format!("the driver did not answer within {deadline:?}");
        if self.driver_check.call.became_overdue(now) {
            self.apply_failed_count(error.clone(), tracked);
            self.probe_all_if_requested(tracked);
        }
        if self.listing.became_overdue(now) {
            self.apply_listing(Vec::new(), tracked);
        }
        for index in 0..self.slots.len() {
            if self.slots[index].call.became_overdue(now) {
                self.fail(index, Observation::TimedOut(error.clone()), tracked);
            }
        }
    }

    /// Starts a driver check: counts the GPUs and reads the fingerprint in procfs.
    pub(super) fn start_driver_check(&mut self, now: Instant) {
        if self.driver_check.call.begin(now, self.policy.health.call_deadline) {
            let (nvml, host) = (self.nvml.clone(), self.roots.host.clone());
            self.running_calls.spawn_blocking(move || {
                CallResult::DriverCheck(procfs::fingerprint(&host), nvml.gpu_count())
            });
        }
    }

    pub(super) fn probe_every_gpu(&mut self, now: Instant, tracked: &TrackedDevices) {
        for index in 0..self.slots.len() {
            self.probe_gpu(index, now, tracked);
        }
    }

    /// Probes every GPU if a failed event wait requested it. The GPUs have been counted again, or the count failed.
    pub(super) fn probe_all_if_requested(&mut self, tracked: &TrackedDevices) {
        if std::mem::take(&mut self.driver_check.probe_all) {
            self.probe_every_gpu(Instant::now(), tracked);
        }
    }

    pub(super) fn probe_gpu(&mut self, index: usize, now: Instant, tracked: &TrackedDevices) {
        let slot = &mut self.slots[index];
        if slot.call.begin(now, self.policy.health.call_deadline) {
            slot.joins_event_set = self.events.is_paused() && slot.is_missing_in(&self.event_set);
            let probe = Probe {
                nvml: self.nvml.clone(),
                driver: self.driver.clone(),
                roots: self.roots.clone(),
                time: ProbeTime {
                    now: tracked.now(),
                    recent_period: self.policy.health.quiet_period,
                },
                index: nvml_index(index),
                switches_mig: self.policy.switches_mig,
                last_facts: slot.facts.clone(),
                earlier_baselines: self.earlier_baselines.clone(),
                had_no_obstacles: slot.has_no_obstacles(),
                event_set_to_join: slot.joins_event_set.then(|| self.event_set.clone()),
            };
            self.running_calls
                .spawn_blocking(move || CallResult::Probe(index, Box::new(probe.run())));
        }
    }

    /// Probes the GPUs that are to join the event set.
    pub(super) fn probe_unwatched(&mut self, tracked: &TrackedDevices) {
        for index in 0..self.slots.len() {
            if self.slots[index].is_missing_in(&self.event_set) {
                self.probe_gpu(index, Instant::now(), tracked);
            }
        }
    }

    /// Probes a GPU after a MIG task. A running probe may be outdated; another one follows it.
    pub(crate) fn probe_again(&mut self, gpu: &DeviceId, tracked: &TrackedDevices) {
        let has_id = |slot: &Slot| slot.ids.first() == Some(gpu);
        let Some(index) = self.slots.iter().position(has_id) else { return };
        self.slots[index].probe_again = !self.slots[index].call.is_idle();
        self.probe_gpu(index, Instant::now(), tracked);
    }

    pub(super) fn probe_recovering(&mut self, now: Instant, tracked: &TrackedDevices) {
        for index in 0..self.slots.len() {
            let recovery = tracked.next_recovery(&self.slots[index].ids);
            if recovery.is_some_and(|time| time <= tracked.now()) {
                self.probe_gpu(index, now, tracked);
            }
        }
    }

    /// Starts a listing of the GPUs in procfs.
    pub(super) fn start_listing(&mut self) {
        if self.listing.begin(Instant::now(), self.policy.health.call_deadline) {
            let roots = self.roots.clone();
            self.running_calls.spawn_blocking(move || CallResult::Listing(procfs::gpus(&roots)));
        }
    }

    pub(super) fn renew_event_set(&mut self, now: Instant) {
        let is_due =
            now >= self.driver_check.event_set_created_at + self.policy.health.probe_interval;
        if !(self.driver_check.needs_event_set && is_due) {
            return;
        }
        (self.driver_check.needs_event_set, self.driver_check.event_set_created_at) = (false, now);
        let (nvml, event_wait) = (self.nvml.clone(), self.policy.health.event_wait);
        self.running_calls
            .spawn_blocking(move || CallResult::EventSet(start_listener(&nvml, event_wait)));
    }
}
