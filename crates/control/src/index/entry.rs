//! A node of the index: its object, its slices and its pods.

use std::collections::BTreeSet;

use windlass_sched::{
    allocator::{ChosenDevice, Pools},
    gpu::GpuSet,
    node::Part,
    request::Gpus,
};

use super::{
    claims::{ClaimHold, ClaimIndex},
    occupancy::{ClaimPart, Occupancy},
};
use crate::facts::{DeviceName, GpuFacts, MAX_GPUS, NodeFacts, SliceGpu, claim_gpus};

#[derive(Debug, Default)]
pub(super) struct Entry {
    /// Facts of its object.
    pub(super) object: NodeFacts,
    /// The same facts, with the GPUs of its slices.
    pub(super) facts: NodeFacts,
    /// By GPU: its name in allocations of claims, if a slice publishes it.
    pub(super) names: Vec<Option<DeviceName>>,
    /// True while the Node object exists. Pods may be known before it exists and after its deletion.
    pub(super) is_there: bool,
    /// UIDs of its pods.
    pub(super) pods: BTreeSet<String>,
    pub(super) occupancy: Occupancy,
}

// === impl Entry ===

impl Entry {
    /// Joins the GPUs of the object with those of the slices by id. If the object only counts GPUs, or has none, the
    /// node has the GPUs of its slices.
    pub(super) fn describe(&mut self, slices: &[SliceGpu]) {
        let slices = &slices[..slices.len().min(MAX_GPUS)];
        self.facts = self.object.clone();
        let has_ids = self.object.gpus.iter().any(|gpu| gpu.id.is_some());
        if has_ids || slices.is_empty() {
            let name_of = |gpu: &GpuFacts| {
                let id = gpu.id.as_ref()?;
                let mut same = slices.iter().filter(|it| it.is(id));
                same.next().map(|it| it.name.clone())
            };
            self.names = self.facts.gpus.iter().map(name_of).collect();
            return;
        }
        self.names = slices.iter().map(|gpu| Some(gpu.name.clone())).collect();
        self.facts.gpus = slices.iter().map(|gpu| gpu.facts.clone()).collect();
    }

    /// Removes its GPUs, because the catalog is full and cannot number one of their products.
    pub(super) fn describe_nothing(&mut self) {
        self.facts.gpus.clear();
        self.names.clear();
    }

    /// The node's GPUs that claims hold.
    pub(super) fn claim_parts(&self, claims: &ClaimIndex) -> Vec<ClaimPart> {
        let holds = claims.holds(&self.object.name).into_iter();
        let part = |hold: ClaimHold| {
            let position = self.position(|name| *name == hold.device)?;
            let part = Part::of(GpuSet::one(position));
            let ClaimHold { claim, pods, gpus, .. } = hold;
            Some(ClaimPart { claim, pods, gpus, part })
        };
        holds.filter_map(part).collect()
    }

    /// The GPUs of an allocation as one request, with their part of the node. Shares beside whole GPUs are ignored.
    pub(super) fn together(&self, pools: &Pools, chosen: &[ChosenDevice]) -> (Gpus, Part) {
        let of = |is_wanted: fn(&Gpus) -> bool| {
            let taken = chosen.iter().map(|it| (it.device, claim_gpus::chosen(it)));
            let wanted = taken.filter(|(_, gpus)| is_wanted(gpus));
            let positions = wanted.filter_map(|(device, gpus)| {
                let (slice, device) = pools.device(device);
                Some((self.position(|name| name.is(slice, device))?, gpus))
            });
            positions.fold((GpuSet::default(), Gpus::None), |(set, _), (position, gpus)| {
                (set.or(GpuSet::one(position)), gpus)
            })
        };
        let (whole, _) = of(|gpus| matches!(gpus, Gpus::Whole(_)));
        let (shared, share) = of(|gpus| matches!(gpus, Gpus::Share { .. }));
        let count = |set: GpuSet| u8::try_from(set.len()).expect("at most 64");
        let (set, gpus) = match (whole.is_empty(), shared.is_empty()) {
            (true, true) => (GpuSet::default(), Gpus::None),
            (true, false) => (shared, share.with_count(count(shared))),
            (false, _) => (whole, Gpus::Whole(count(whole))),
        };
        (gpus, Part::of(set))
    }

    fn position(&self, is_it: impl Fn(&DeviceName) -> bool) -> Option<usize> {
        self.names.iter().position(|name| name.as_ref().is_some_and(&is_it))
    }
}
