//! Effects of the driver's answers on devices.

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
        ConnectError, Ended,
        describe::Describe,
        known::KnownDevices,
        probe::ProbeReport,
        procfs::{Fingerprint, ListedGpu},
    },
    CallResult, Connection, Listening, NumberedSet, position,
    slot::{Outcome, Slot},
};

impl Connection {
    pub(super) fn take_answer(
        &mut self,
        answer: Result<CallResult, JoinError>,
        known: &mut KnownDevices,
    ) -> Option<Ended> {
        match answer.expect("a blocking task neither panics nor is cancelled while this lives") {
            CallResult::Round(fingerprint, count) => self.take_round(&fingerprint, count, known),
            CallResult::Gpu(index, outcome) => {
                self.take_gpu(index, *outcome, known);
                None
            }
            CallResult::Listed(gpus) => {
                self.listing.settle();
                self.take_listing(gpus, known);
                None
            }
            CallResult::Events(set) => {
                self.take_events(set, known);
                None
            }
        }
    }

    fn take_round(
        &mut self,
        fingerprint: &Fingerprint,
        count: Result<u32, NvmlError>,
        known: &mut KnownDevices,
    ) -> Option<Ended> {
        self.round.call.settle();
        if *fingerprint != self.fingerprint {
            return Some(Ended::Changed);
        }
        match count {
            Ok(count) if self.slots.is_empty() => self.open_slots(count, known),
            // NVML counts once per initialisation; indices now mean other GPUs.
            Ok(count) if count as usize != self.slots.len() => return Some(Ended::Changed),
            Ok(_) => self.round.error = None,
            Err(error) => self.count_failed(error.to_string(), known),
        }
        if std::mem::take(&mut self.round.is_outdated) {
            self.start_round(Instant::now());
        } else {
            self.probe_wanted_gpus(known);
        }
        None
    }

    fn open_slots(&mut self, count: u32, known: &mut KnownDevices) {
        self.round.error = None;
        self.slots.resize_with(count as usize, Slot::default);
        self.probe_every_gpu(Instant::now(), known);
        self.vanish_unlisted(known);
    }

    /// Without a count no GPU can be probed or trusted.
    pub(super) fn count_failed(&mut self, why: String, known: &mut KnownDevices) {
        if self.slots.is_empty() {
            known.fail_all(Reason::ProbeFailed, &why);
        }
        self.round.error = Some(why);
    }

    fn take_gpu(
        &mut self,
        index: usize,
        outcome: Result<ProbeReport, NvmlError>,
        known: &mut KnownDevices,
    ) {
        self.slots[index].call.settle();
        match outcome {
            Ok(probed) => self.take_probed(index, probed, known),
            Err(error) => {
                let lost = error.is_lost();
                let reason = if lost { Reason::Lost } else { Reason::ProbeFailed };
                self.slots[index].outcome = if lost { Outcome::Lost } else { Outcome::Failed };
                self.fail(index, Observation::Failed(reason, error.to_string()), known);
            }
        }
        if std::mem::take(&mut self.slots[index].probe_again) {
            self.probe_gpu(index, Instant::now(), known);
        }
        // Sensors wait until every GPU is known.
        if self.has_seen_every_gpu() {
            self.samples.begin(known.now(), self.policy.probe_interval);
        }
    }

    fn take_probed(&mut self, index: usize, probed: ProbeReport, known: &mut KnownDevices) {
        self.samples.mark(index, &probed);
        let slot = &mut self.slots[index];
        let gone = slot.apply(&probed, &self.earlier);
        let errors = slot.errors.count(probed.readings.uncorrected_errors);
        for device in probed.described.into_iter().flatten() {
            known.describe(device);
        }
        let slot = &self.slots[index];
        if let Some(fault) = errors.and_then(|errors| self.uncorrected(errors)) {
            slot.ids.iter().for_each(|id| known.observe(id, &fault));
        }
        // The driver reports no faults of a GPU outside the event set, so the GPU is not healthy before it has joined.
        let is_unwatched = slot.is_left_out(&self.event_set);
        for (id, observation) in slot.observations(probed.failure.as_ref()) {
            if !(is_unwatched && observation == Observation::Passed) {
                known.observe(id, &observation);
            }
        }
        self.vanish_unless_present(&gone, known);
        self.vanish_unlisted(known);
        for event in std::mem::take(&mut self.unmatched) {
            self.take_fault(event, known);
        }
        if self.slots[index].is_missing_in(&self.event_set) && self.events.is_paused() {
            // The probe started before the pause, or with an older event set.
            self.probe_gpu(index, Instant::now(), known);
        }
    }

    /// Applies a failure to the GPU and its parts. A GPU without id gets one first.
    pub(super) fn fail(
        &mut self,
        index: usize,
        observation: Observation,
        known: &mut KnownDevices,
    ) {
        let slot = &mut self.slots[index];
        if slot.outcome != Outcome::Lost {
            slot.outcome = Outcome::Failed;
        }
        if !matches!(observation, Observation::Overdue(_)) {
            // The failure may have ended the GPU's registration for events. A late call does not.
            slot.watched_in = None;
        }
        if slot.ids.is_empty() {
            slot.unnamed = Some(observation);
            match self.listed.take() {
                Some(listed) => self.take_listing(listed, known),
                None => self.start_listing(),
            }
            return;
        }
        for id in &slot.ids {
            known.observe(id, &observation);
        }
    }

    /// Assigns ids to GPUs that report none. NVML and the kernel module have the same order.
    pub(super) fn take_listing(&mut self, listed: Vec<ListedGpu>, known: &mut KnownDevices) {
        let complete = listed.len() == self.slots.len();
        let describe = Describe { host: &self.roots.host, driver: &self.driver, now: known.now() };
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let Some(observation) = slot.unnamed.take() else { continue };
            let entry = listed.get(index).filter(|_| complete);
            // An earlier initialisation may have described the GPU and its instances.
            slot.ids = known.whole_and_parts_at(entry);
            if slot.ids.is_empty() {
                let device = describe.failed(position(index), entry);
                slot.ids.push(device.id.clone());
                known.describe(device);
            }
            for id in &slot.ids {
                known.observe(id, &observation);
            }
        }
        self.listed = Some(listed);
    }

    /// Updates the time since which a GPU is lost, and the event wait, after each step.
    pub(super) fn check_lost_gpus(&mut self) {
        let lost = self.round.error.is_some() || self.slots.iter().any(Slot::is_lost);
        self.lost_since = lost.then(|| self.lost_since.unwrap_or_else(Instant::now));
        self.direct_event_wait();
    }

    /// Starts event waits once every GPU that answers is in the event set, and pauses them while one is not.
    fn direct_event_wait(&mut self) {
        if self.slots.iter().any(|slot| slot.is_left_out(&self.event_set)) {
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

    fn vanish_unless_present(&self, ids: &[DeviceId], known: &mut KnownDevices) {
        let present: BTreeSet<_> = self.slots.iter().flat_map(|slot| &slot.ids).collect();
        for id in ids.iter().filter(|id| !present.contains(id)) {
            known.vanish(id, "the driver lists it no longer");
        }
    }

    /// Marks known devices that this initialisation lacks as vanished.
    fn vanish_unlisted(&self, known: &mut KnownDevices) {
        if self.has_seen_every_gpu() {
            let ids: Vec<_> = known.ids().cloned().collect();
            self.vanish_unless_present(&ids, known);
        }
    }

    /// Switches to a new event set. Every GPU that answers joins it; lost ones would break every wait.
    fn take_events(&mut self, listening: Result<Listening, ConnectError>, known: &KnownDevices) {
        match listening {
            Ok(Listening { set, watch }) => {
                let number = self.event_set.number + 1;
                let old = std::mem::replace(&mut self.event_set, NumberedSet { number, set });
                self.events = watch;
                // Freeing a set calls the driver.
                tokio::task::spawn_blocking(move || drop(old));
                self.probe_every_gpu(Instant::now(), known);
            }
            Err(error) => {
                tracing::warn!(
                    error = causes(&error),
                    "NVML events not registered, trying again: probes find faults meanwhile"
                );
                self.round.wants_events = true;
            }
        }
    }
}
