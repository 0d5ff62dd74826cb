//! Handling of the driver's answers: updates of slots and devices.

use std::collections::BTreeSet;

use tokio::{task::JoinError, time::Instant};
use windlass_core::{
    device::DeviceId,
    health::{Observation, Reason},
};
use windlass_host::causes;
use windlass_nvml::NvmlError;

use super::{
    super::{
        ConnectError, ConnectionEnd,
        describe::Describer,
        probe::ProbeReport,
        procfs::{Fingerprint, ListedGpu},
        tracked::TrackedDevices,
    },
    CallResult, Connection, EventListener, NumberedEventSet, nvml_index,
    slot::{ProbeOutcome, Slot},
};

impl Connection {
    pub(super) fn handle_answer(
        &mut self,
        answer: Result<CallResult, JoinError>,
        tracked: &mut TrackedDevices,
    ) -> Option<ConnectionEnd> {
        match answer
            .expect("a blocking task neither panics nor is cancelled while the connection lives")
        {
            CallResult::DriverCheck(fingerprint, count) => {
                self.apply_driver_check(&fingerprint, count, tracked)
            }
            CallResult::Probe(index, outcome) => {
                self.apply_gpu_result(index, *outcome, tracked);
                None
            }
            CallResult::Listing(gpus) => {
                self.listing.settle();
                self.apply_listing(gpus, tracked);
                None
            }
            CallResult::EventSet(set) => {
                self.apply_event_set(set, tracked);
                None
            }
        }
    }

    fn apply_driver_check(
        &mut self,
        fingerprint: &Fingerprint,
        count: Result<u32, NvmlError>,
        tracked: &mut TrackedDevices,
    ) -> Option<ConnectionEnd> {
        self.driver_check.call.settle();
        if *fingerprint != self.fingerprint {
            return Some(ConnectionEnd::DriverChanged);
        }
        match count {
            Ok(count) if self.slots.is_empty() => self.create_slots(count, tracked),
            // After a change of the count, the indices of this initialisation may belong to other GPUs.
            Ok(count) if count as usize != self.slots.len() => {
                return Some(ConnectionEnd::DriverChanged);
            }
            Ok(_) => self.driver_check.error = None,
            Err(error) => self.apply_failed_count(error.to_string(), tracked),
        }
        if std::mem::take(&mut self.driver_check.is_outdated) {
            self.start_driver_check(Instant::now());
        } else {
            self.probe_all_if_requested(tracked);
        }
        None
    }

    fn create_slots(&mut self, count: u32, tracked: &mut TrackedDevices) {
        self.driver_check.error = None;
        self.slots.resize_with(count as usize, Slot::default);
        self.probe_every_gpu(Instant::now(), tracked);
        self.mark_unlisted_vanished(tracked);
    }

    /// Applies a failed count of GPUs. Before the first successful count no GPU can be probed, so all devices fail.
    pub(super) fn apply_failed_count(&mut self, error: String, tracked: &mut TrackedDevices) {
        if self.slots.is_empty() {
            tracked.fail_all(Reason::ProbeFailed, &error);
        }
        self.driver_check.error = Some(error);
    }

    fn apply_gpu_result(
        &mut self,
        index: usize,
        outcome: Result<ProbeReport, NvmlError>,
        tracked: &mut TrackedDevices,
    ) {
        self.slots[index].call.settle();
        match outcome {
            Ok(report) => self.apply_report(index, report, tracked),
            Err(error) => {
                let is_lost = error.is_lost();
                let reason = if is_lost { Reason::Lost } else { Reason::ProbeFailed };
                self.slots[index].outcome =
                    if is_lost { ProbeOutcome::Lost } else { ProbeOutcome::Failed };
                self.fail(index, Observation::Failed(reason, error.to_string()), tracked);
            }
        }
        if std::mem::take(&mut self.slots[index].probe_again) {
            self.probe_gpu(index, Instant::now(), tracked);
        }
        // Sensors are read once every GPU has answered or missed its deadline.
        if self.has_seen_every_gpu() {
            self.telemetry.start_reads(tracked.now(), self.policy.health.probe_interval);
        }
    }

    fn apply_report(&mut self, index: usize, report: ProbeReport, tracked: &mut TrackedDevices) {
        self.telemetry.enqueue(index, &report);
        let slot = &mut self.slots[index];
        let former_ids = slot.apply(&report, &self.earlier_baselines);
        let errors = slot.errors.count(report.readings.uncorrected_errors);
        for device in report.devices.into_iter().flatten() {
            tracked.describe(device);
        }
        let slot = &self.slots[index];
        if let Some(fault) = errors.and_then(|errors| self.uncorrected_fault(errors)) {
            slot.ids.iter().for_each(|id| tracked.observe(id, &fault));
        }
        // The driver reports no faults of a GPU outside the event set, so the GPU is not healthy before it has joined.
        let is_unwatched = slot.is_unwatched(&self.event_set);
        for (id, observation) in slot.observations(report.failure.as_ref()) {
            if !(is_unwatched && observation == Observation::Passed) {
                tracked.observe(id, &observation);
            }
        }
        self.mark_absent_vanished(&former_ids, tracked);
        self.mark_unlisted_vanished(tracked);
        for event in std::mem::take(&mut self.unmatched) {
            self.apply_fault(event, tracked);
        }
        if self.slots[index].is_missing_in(&self.event_set) && self.events.is_paused() {
            // The probe started before the pause, or with an older event set.
            self.probe_gpu(index, Instant::now(), tracked);
        }
    }

    /// Applies a failure to the GPU and its instances. For a GPU without id, an id is determined first.
    pub(super) fn fail(
        &mut self,
        index: usize,
        observation: Observation,
        tracked: &mut TrackedDevices,
    ) {
        let slot = &mut self.slots[index];
        if slot.outcome != ProbeOutcome::Lost {
            slot.outcome = ProbeOutcome::Failed;
        }
        if !matches!(observation, Observation::TimedOut(_)) {
            // The failure may have ended the GPU's registration for events. A missed deadline does not end it.
            slot.event_set_number = None;
        }
        if slot.ids.is_empty() {
            slot.unidentified = Some(observation);
            match self.listed_gpus.take() {
                Some(listed_gpus) => self.apply_listing(listed_gpus, tracked),
                None => self.start_listing(),
            }
            return;
        }
        for id in &slot.ids {
            tracked.observe(id, &observation);
        }
    }

    /// Assigns ids to GPUs that do not report their UUID. NVML and the kernel module list GPUs in the same order.
    pub(super) fn apply_listing(
        &mut self,
        listed_gpus: Vec<ListedGpu>,
        tracked: &mut TrackedDevices,
    ) {
        let is_complete = listed_gpus.len() == self.slots.len();
        let describer =
            Describer { host: &self.roots.host, driver: &self.driver, now: tracked.now() };
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let Some(observation) = slot.unidentified.take() else { continue };
            let entry = listed_gpus.get(index).filter(|_| is_complete);
            // An earlier initialisation may have described the GPU and its instances.
            slot.ids = tracked.gpu_and_instances_at(entry);
            if slot.ids.is_empty() {
                let device = describer.placeholder_gpu(nvml_index(index), entry);
                slot.ids.push(device.id.clone());
                tracked.describe(device);
            }
            for id in &slot.ids {
                tracked.observe(id, &observation);
            }
        }
        self.listed_gpus = Some(listed_gpus);
    }

    /// Updates `lost_since` and the event wait after each step.
    pub(super) fn check_lost_gpus(&mut self) {
        let may_be_lost = self.driver_check.error.is_some() || self.slots.iter().any(Slot::is_lost);
        self.lost_since = may_be_lost.then(|| self.lost_since.unwrap_or_else(Instant::now));
        self.update_event_wait();
    }

    /// Starts event waits once every GPU that answers is in the event set, and pauses them while one is not.
    fn update_event_wait(&mut self) {
        if self.slots.iter().any(|slot| slot.is_unwatched(&self.event_set)) {
            return self.events.pause();
        }
        if !self.has_seen_every_gpu() || self.slots.iter().any(Slot::is_joining) {
            return;
        }
        if self.lost_since.is_some() {
            self.events.wait_short();
        } else {
            self.events.wait_long();
        }
    }

    fn mark_absent_vanished(&self, ids: &[DeviceId], tracked: &mut TrackedDevices) {
        let present: BTreeSet<_> = self.slots.iter().flat_map(|slot| &slot.ids).collect();
        for id in ids.iter().filter(|id| !present.contains(id)) {
            tracked.mark_vanished(id, "the driver lists it no longer");
        }
    }

    /// Marks tracked devices that this initialisation does not list as vanished.
    fn mark_unlisted_vanished(&self, tracked: &mut TrackedDevices) {
        if self.has_seen_every_gpu() {
            let ids: Vec<_> = tracked.ids().cloned().collect();
            self.mark_absent_vanished(&ids, tracked);
        }
    }

    /// Switches to a new event set. Every GPU that answers joins the set. A lost GPU in the set would break every wait.
    fn apply_event_set(
        &mut self,
        listener: Result<EventListener, ConnectError>,
        tracked: &TrackedDevices,
    ) {
        match listener {
            Ok(EventListener { set, watch }) => {
                let number = self.event_set.number + 1;
                let old_set =
                    std::mem::replace(&mut self.event_set, NumberedEventSet { number, set });
                self.events = watch;
                // Freeing a set calls the driver.
                tokio::task::spawn_blocking(move || drop(old_set));
                self.probe_every_gpu(Instant::now(), tracked);
            }
            Err(error) => {
                tracing::warn!(
                    error = causes(&error),
                    "NVML events not registered, trying again: probes find faults meanwhile"
                );
                self.driver_check.needs_event_set = true;
            }
        }
    }
}
