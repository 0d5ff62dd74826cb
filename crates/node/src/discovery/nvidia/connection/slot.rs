//! One position in NVML's order, and what stands there.

use std::{collections::BTreeMap, sync::Arc};

use windlass_core::{
    device::DeviceId,
    health::{Observation, Reason},
};
use windlass_nvml::{Event, EventSet};

use super::super::{facts::GpuFacts, probe::Probed, question::Question};

#[derive(Default)]
pub(super) struct Slot {
    pub(super) facts: Option<GpuFacts>,
    /// The GPU, or a placeholder for it, and its MIG instances.
    pub(super) ids: Vec<DeviceId>,
    /// Why single instances cannot be used though the GPU is fine.
    obstacles: BTreeMap<DeviceId, String>,
    pub(super) question: Question,
    /// The number of the set that its events come through.
    pub(super) watched_in: Option<u64>,
    /// Whether the driver called it lost when last asked.
    pub(super) lost: bool,
    /// What was seen of a GPU that has no name yet.
    pub(super) unnamed: Option<Observation>,
}

/// A set of GPUs whose events are waited for, and which of those made so far it is.
#[derive(Clone)]
pub(in super::super) struct NumberedSet {
    pub(in super::super) number: u64,
    pub(in super::super) set: Arc<EventSet>,
}

// === impl Slot ===

impl Slot {
    /// The set, unless the GPU is in it already.
    pub(super) fn needs(&self, current: &NumberedSet) -> Option<NumberedSet> {
        (self.watched_in != Some(current.number)).then(|| current.clone())
    }

    /// Whether it answered, or was overdue, once, and what was seen has a name.
    pub(super) fn is_settled(&self) -> bool {
        self.question.is_settled() && self.unnamed.is_none()
    }

    /// The facts that need no second look; what stands in the way of a device may be gone.
    pub(super) fn settled_facts(&self) -> Option<GpuFacts> {
        self.facts.clone().filter(|_| self.obstacles.is_empty())
    }

    pub(super) fn is(&self, event: &Event) -> bool {
        self.facts.as_ref().is_some_and(|facts| facts.gpu == event.gpu)
    }

    /// Takes in a probe that came back. Gives the ids that stood here before.
    pub(super) fn take(&mut self, probed: &Probed) -> Vec<DeviceId> {
        (self.lost, self.unnamed) = (false, None);
        self.watched_in = probed.watched_in.or(self.watched_in);
        let Some(devices) = &probed.described else { return Vec::new() };
        self.facts = Some(probed.facts.clone());
        self.obstacles.clone_from(&probed.obstacles);
        let ids = devices.iter().map(|device| device.id.clone()).collect();
        std::mem::replace(&mut self.ids, ids)
    }

    /// What a probe that came back says of each device.
    pub(super) fn observations(
        &self,
        needs_reset: Option<&str>,
    ) -> impl Iterator<Item = (&DeviceId, Observation)> {
        self.ids.iter().map(move |id| {
            let observation = match (needs_reset, self.obstacles.get(id)) {
                (Some(why), _) => Observation::Failed(Reason::NeedsReset, why.to_owned()),
                (None, Some(why)) => Observation::Failed(Reason::ProbeFailed, why.clone()),
                (None, None) => Observation::Passed,
            };
            (id, observation)
        })
    }
}
