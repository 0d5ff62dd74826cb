//! Slot: state of one NVML index, with its GPU and the GPU's probe.

use std::{collections::BTreeMap, sync::Arc};

use windlass_core::{
    device::DeviceId,
    health::{Observation, Reason},
};
use windlass_host::pending_call::PendingCall;
use windlass_nvml::{Event, EventSet};

use super::super::{
    baseline::{Baseline, Baselines, ErrorCount},
    facts::GpuFacts,
    probe::ProbeReport,
};

#[derive(Default)]
pub(super) struct Slot {
    pub(super) facts: Option<GpuFacts>,
    /// Ids of the GPU (or its placeholder) and its MIG instances.
    pub(super) ids: Vec<DeviceId>,
    /// Reasons why some of the devices are unusable.
    obstacles: BTreeMap<DeviceId, String>,
    pub(super) call: PendingCall,
    /// Another probe follows the running one.
    pub(super) probe_again: bool,
    /// Number of the event set that contains the GPU.
    pub(super) event_set_number: Option<u64>,
    /// True if the running probe has the GPU join an event set.
    pub(super) joins_event_set: bool,
    pub(super) outcome: ProbeOutcome,
    pub(super) errors: ErrorCount,
    /// Observation of a GPU without id.
    pub(super) unidentified: Option<Observation>,
}

/// Outcome of a GPU's last probe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ProbeOutcome {
    #[default]
    Pending,
    Answered,
    Failed,
    /// The GPU is off the bus.
    Lost,
}

#[derive(Clone)]
pub(crate) struct NumberedEventSet {
    pub(crate) number: u64,
    pub(crate) set: Arc<EventSet>,
}

// === impl Slot ===

impl Slot {
    /// True if the GPU is not in the event set yet.
    pub(super) fn is_missing_in(&self, current: &NumberedEventSet) -> bool {
        self.event_set_number != Some(current.number)
    }

    /// True if the GPU answers but is not in the event set.
    pub(super) fn is_unwatched(&self, current: &NumberedEventSet) -> bool {
        self.outcome == ProbeOutcome::Answered && self.is_missing_in(current)
    }

    pub(super) fn is_lost(&self) -> bool {
        self.outcome == ProbeOutcome::Lost
    }

    /// True if the running probe has the GPU join an event set, and has not missed its deadline.
    pub(super) fn is_joining(&self) -> bool {
        self.joins_event_set && self.call.is_running()
    }

    /// True once the GPU answered or missed a deadline, and has an id.
    pub(super) fn is_settled(&self) -> bool {
        self.call.is_settled() && self.unidentified.is_none()
    }

    /// True if every instance is usable.
    pub(super) fn has_no_obstacles(&self) -> bool {
        self.obstacles.is_empty()
    }

    pub(super) fn matches(&self, event: &Event) -> bool {
        self.facts.as_ref().is_some_and(|facts| facts.gpu == event.gpu)
    }

    /// Applies the report of a probe. If the report describes devices, returns the former ids, and nothing otherwise.
    pub(super) fn apply(
        &mut self,
        report: &ProbeReport,
        earlier_baselines: &Baselines,
    ) -> Vec<DeviceId> {
        (self.outcome, self.unidentified) = (ProbeOutcome::Answered, None);
        if self.facts.as_ref().is_none_or(|facts| facts.id != report.facts.id) {
            let baseline = earlier_baselines.get(&report.facts.id);
            self.errors = baseline.map(|baseline| baseline.errors).unwrap_or_default();
            self.event_set_number = None;
        }
        self.event_set_number = report.event_set_number.or(self.event_set_number);
        self.facts = Some(report.facts.clone());
        let Some(devices) = &report.devices else { return Vec::new() };
        self.obstacles.clone_from(&report.obstacles);
        let ids = devices.iter().map(|device| device.id.clone()).collect();
        std::mem::replace(&mut self.ids, ids)
    }

    /// Baseline of the GPU, once it answered.
    pub(super) fn baseline(&self) -> Option<(DeviceId, Baseline)> {
        let GpuFacts { id, links, conditions, .. } = self.facts.as_ref()?;
        let (links, conditions) = (links.clone(), conditions.clone());
        Some((id.clone(), Baseline { links, conditions, errors: self.errors }))
    }

    /// Devices that an event affects: the instance in the event, or else the GPU and all its instances.
    pub(super) fn affected_devices(&self, event: &Event) -> Vec<DeviceId> {
        let instance_ids = event.gpu_instance.and_then(|gpu_instance| {
            let facts = self.facts.as_ref()?;
            let instances = facts.instances().iter().filter(|instance| {
                let is_compute_instance =
                    event.compute_instance.is_none_or(|id| id == instance.compute_instance);
                instance.gpu_instance == gpu_instance && is_compute_instance
            });
            let ids: Vec<_> = instances.map(|instance| instance.id.clone()).collect();
            Some(ids).filter(|ids| !ids.is_empty())
        });
        instance_ids.unwrap_or_else(|| self.ids.clone())
    }

    /// Observation of each device after a probe.
    pub(super) fn observations(
        &self,
        failure: Option<&(Reason, String)>,
    ) -> impl Iterator<Item = (&DeviceId, Observation)> {
        self.ids.iter().map(move |id| {
            let observation = match (failure, self.obstacles.get(id)) {
                (Some((reason, detail)), _) => Observation::Failed(*reason, detail.clone()),
                (None, Some(detail)) => Observation::Failed(Reason::ProbeFailed, detail.clone()),
                (None, None) => Observation::Passed,
            };
            (id, observation)
        })
    }
}
