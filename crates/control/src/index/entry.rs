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

/// A node: the facts of its objects, its pods, and its occupancy.
#[derive(Debug, Default)]
pub(super) struct NodeEntry {
    /// Facts of the Node object.
    pub(super) object: NodeFacts,
    /// The same facts, with the GPUs of the node's slices.
    pub(super) facts: NodeFacts,
    /// By GPU: its device name in claim allocations, if a slice publishes the GPU.
    pub(super) device_names: Vec<Option<DeviceName>>,
    /// True while the Node object exists. The index may have pods of the node before that and after the deletion.
    pub(super) has_object: bool,
    /// UIDs of the node's pods.
    pub(super) pods: BTreeSet<String>,
    pub(super) occupancy: Occupancy,
}

// === impl NodeEntry ===

impl NodeEntry {
    /// Sets the node's GPUs. GPUs that the object lists by id stay, and get the device names of the slices. If the
    /// object only counts GPUs, or has none, the node has the GPUs of its slices.
    pub(super) fn set_gpus(&mut self, slice_gpus: &[SliceGpu]) {
        let slice_gpus = &slice_gpus[..slice_gpus.len().min(MAX_GPUS)];
        self.facts = self.object.clone();
        let has_ids = self.object.gpus.iter().any(|gpu| gpu.id.is_some());
        if has_ids || slice_gpus.is_empty() {
            let name_of = |gpu: &GpuFacts| {
                let id = gpu.id.as_ref()?;
                let slice_gpu = slice_gpus.iter().find(|slice_gpu| slice_gpu.has_id(id))?;
                Some(slice_gpu.name.clone())
            };
            self.device_names = self.facts.gpus.iter().map(name_of).collect();
        } else {
            self.device_names = slice_gpus.iter().map(|gpu| Some(gpu.name.clone())).collect();
            self.facts.gpus = slice_gpus.iter().map(|gpu| gpu.facts.clone()).collect();
        }
    }

    /// Removes the node's GPUs. Needed if the catalog of GPU products is full and lacks one of theirs.
    pub(super) fn clear_gpus(&mut self) {
        self.facts.gpus.clear();
        self.device_names.clear();
    }

    /// The node's GPUs that claims hold.
    pub(super) fn claim_parts(&self, claims: &ClaimIndex) -> Vec<ClaimPart> {
        let holds = claims.claim_holds(&self.object.name).into_iter();
        let part = |hold: ClaimHold| {
            let position = self.position(|name| *name == hold.device)?;
            let part = Part::of(GpuSet::single(position));
            let ClaimHold { claim, pods, gpus, .. } = hold;
            Some(ClaimPart { claim, pods, gpus, part })
        };
        holds.filter_map(part).collect()
    }

    /// The GPUs of an allocation as one request, with their part of the node. A request has GPUs of one form: with
    /// whole GPUs, shares are ignored; otherwise all shares get the size of the last one.
    pub(super) fn allocated_gpus(&self, pools: &Pools, chosen: &[ChosenDevice]) -> (Gpus, Part) {
        let of_form = |is_form: fn(&Gpus) -> bool| {
            let devices =
                chosen.iter().map(|chosen| (chosen.device, claim_gpus::from_chosen_device(chosen)));
            let devices = devices.filter(|(_, gpus)| is_form(gpus));
            let positions = devices.filter_map(|(device, gpus)| {
                let (slice, device) = pools.device(device);
                Some((self.position(|name| name.names_device(slice, device))?, gpus))
            });
            positions.fold((GpuSet::default(), Gpus::None), |(set, _), (position, gpus)| {
                (set.union(GpuSet::single(position)), gpus)
            })
        };
        let (whole, _) = of_form(|gpus| matches!(gpus, Gpus::Whole(_)));
        let (shared, share) = of_form(|gpus| matches!(gpus, Gpus::Share { .. }));
        let count = |set: GpuSet| u8::try_from(set.len()).expect("at most 64");
        let (set, gpus) = match (whole.is_empty(), shared.is_empty()) {
            (true, true) => (GpuSet::default(), Gpus::None),
            (true, false) => (shared, share.with_count(count(shared))),
            (false, _) => (whole, Gpus::Whole(count(whole))),
        };
        (gpus, Part::of(set))
    }

    fn position(&self, is_match: impl Fn(&DeviceName) -> bool) -> Option<usize> {
        self.device_names.iter().position(|name| name.as_ref().is_some_and(&is_match))
    }
}
