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
    /// Another look is to follow the one that is under way.
    pub(super) again: bool,
    /// The number of the set that its events come through.
    pub(super) watched_in: Option<u64>,
    /// Whether the driver called it lost when last asked.
    pub(super) lost: bool,
    /// How many memory errors were not corrected when last asked.
    uncorrected_errors: Option<u64>,
    /// The driver told of an error that was contained since.
    pub(super) contained: bool,
    /// What was seen of a GPU that has no name yet.
    pub(super) unnamed: Option<Observation>,
}

/// A set of GPUs whose events are waited for, and which of those made so far it is.
#[derive(Clone)]
pub(crate) struct NumberedSet {
    pub(crate) number: u64,
    pub(crate) set: Arc<EventSet>,
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

    /// Whether every device of it can be used; what stands in the way of one may be gone.
    pub(super) fn has_no_obstacles(&self) -> bool {
        self.obstacles.is_empty()
    }

    pub(super) fn is(&self, event: &Event) -> bool {
        self.facts.as_ref().is_some_and(|facts| facts.gpu == event.gpu)
    }

    /// Takes in a probe that came back. Gives the ids that stood here before.
    pub(super) fn take(&mut self, probed: &Probed) -> Vec<DeviceId> {
        (self.lost, self.unnamed) = (false, None);
        self.watched_in = probed.watched_in.or(self.watched_in);
        self.facts = Some(probed.facts.clone());
        let Some(devices) = &probed.described else { return Vec::new() };
        self.obstacles.clone_from(&probed.obstacles);
        let ids = devices.iter().map(|device| device.id.clone()).collect();
        std::mem::replace(&mut self.ids, ids)
    }

    /// How many errors were counted since the last look that no event of a contained error explains.
    pub(super) fn count_errors(&mut self, counted: Option<u64>) -> Option<u64> {
        let before = std::mem::replace(&mut self.uncorrected_errors, counted);
        let contained = std::mem::take(&mut self.contained);
        let news = counted?.checked_sub(before?).filter(|&news| news > 0)?;
        (!contained).then_some(news)
    }

    /// The devices that a fault is about: the instance that the event names, or all.
    pub(super) fn concerned(&self, event: &Event) -> Vec<DeviceId> {
        let named = event.gpu_instance.and_then(|gpu_instance| {
            let facts = self.facts.as_ref()?;
            let parts = facts.instances().iter().filter(|part| {
                let compute = event.compute_instance.is_none_or(|id| id == part.compute_instance);
                part.gpu_instance == gpu_instance && compute
            });
            let ids: Vec<_> = parts.map(|part| part.id.clone()).collect();
            Some(ids).filter(|ids| !ids.is_empty())
        });
        named.unwrap_or_else(|| self.ids.clone())
    }

    /// What a probe that came back says of each device.
    pub(super) fn observations(
        &self,
        trouble: Option<&(Reason, String)>,
    ) -> impl Iterator<Item = (&DeviceId, Observation)> {
        self.ids.iter().map(move |id| {
            let observation = match (trouble, self.obstacles.get(id)) {
                (Some((reason, why)), _) => Observation::Failed(*reason, why.clone()),
                (None, Some(why)) => Observation::Failed(Reason::ProbeFailed, why.clone()),
                (None, None) => Observation::Passed,
            };
            (id, observation)
        })
    }
}
