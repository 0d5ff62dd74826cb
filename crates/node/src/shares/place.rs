//! Choice of a share's GPUs: the decided ones first, then the fullest that fit. Whole GPUs are a well connected set.

use std::fmt;

use windlass_allocations::ledger::{FULL_COMPUTE_PERCENT, Ledger};
use windlass_core::{
    device::DeviceId,
    placement::{self, Policy, Request, Topology},
    virtual_gpus::{GpuShares, PodRequest, ShareMemory},
};
use windlass_resources::offers::{ShareableGpu, ShareableGpus};

use super::hold::Amounts;

/// Request for GPUs, and the state of the node that decides it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShareRequest<'a> {
    /// GPUs that the pod may share.
    pub(super) gpus: &'a ShareableGpus,
    /// Connections of the GPUs.
    pub(super) topology: &'a Topology,
    /// Holders of devices.
    pub(super) ledger: &'a Ledger,
    /// The pod's request.
    pub(super) size: ShareSize,
    /// Amounts of pods whose GPUs are unknown. They count on every GPU.
    pub(super) unknown: Amounts,
    /// GPUs that the cluster half decided.
    pub(super) decided: &'a [DeviceId],
}

/// Shares of equal size on some GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ShareSize {
    /// Number of GPUs.
    pub(super) count: usize,
    memory: ShareMemory,
    compute_percent: u64,
}

/// All memory of a GPU.
const FULL_MEMORY: ShareMemory = ShareMemory::Percent(100);

// === impl ShareSize ===

impl ShareSize {
    /// Amounts of one GPU.
    pub(super) fn of_one(amounts: Amounts) -> Self {
        let Amounts { memory_mib, compute_percent } = amounts;
        let mib = u32::try_from(memory_mib).unwrap_or(u32::MAX);
        Self { count: 1, memory: ShareMemory::Mib(mib), compute_percent }
    }

    /// Size of virtual GPUs. `tokens` is the number of whole GPUs.
    pub(super) fn of_virtual_gpus(request: PodRequest, tokens: usize) -> Self {
        match request {
            PodRequest::WholeGpus => {
                Self { count: tokens, memory: FULL_MEMORY, compute_percent: FULL_COMPUTE_PERCENT }
            }
            PodRequest::Shares(GpuShares { count, memory, compute_percent }) => {
                Self { count: usize::from(count), memory, compute_percent: compute_percent.into() }
            }
        }
    }

    /// Amounts on a GPU with `gpu_mib` of memory.
    pub(super) fn amounts_on(self, gpu_mib: u64) -> Amounts {
        let memory_mib = self.memory.mib_of(u32::try_from(gpu_mib).unwrap_or(u32::MAX));
        let memory_mib = memory_mib.unwrap_or(0).into();
        Amounts { memory_mib, compute_percent: self.compute_percent }
    }

    fn is_whole(self) -> bool {
        (self.memory, self.compute_percent) == (FULL_MEMORY, FULL_COMPUTE_PERCENT)
    }
}

impl fmt::Display for ShareSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.memory {
            ShareMemory::Mib(mib) => write!(f, "{mib} MiB of memory")?,
            ShareMemory::Percent(percent) => write!(f, "{percent} % of memory")?,
        }
        write!(f, " and {} % of compute", self.compute_percent)?;
        if self.count == 1 { Ok(()) } else { write!(f, " of each of {} GPUs", self.count) }
    }
}

// === impl ShareRequest ===

impl ShareRequest<'_> {
    /// GPUs that fit, best first. The ledger may still refuse one.
    pub(super) fn candidates(&self) -> Vec<DeviceId> {
        let fits = |(id, gpu): (&DeviceId, &ShareableGpu)| {
            let is_free = self.obstacle(id, gpu).is_none();
            let requested = self.size.amounts_on(gpu.memory_mib);
            is_free.then(|| (self.free(id, gpu).saturating_sub(requested), id.clone()))
        };
        let mut fitting: Vec<_> = self.gpus.iter().filter_map(fits).collect();
        let connected = self.well_connected(&fitting);
        fitting.sort_by_key(|(free, id)| {
            let (is_other, is_far) = (!self.decided.contains(id), !connected.contains(id));
            (is_other, is_far, free.memory_mib, free.compute_percent, id.clone())
        });
        fitting.into_iter().map(|(_, id)| id).collect()
    }

    /// The best connected set that contains the decided GPUs that fit. Empty for a share of one GPU, or
    /// of parts of GPUs.
    fn well_connected(&self, fitting: &[(Amounts, DeviceId)]) -> Vec<DeviceId> {
        if !self.size.is_whole() || self.size.count < 2 {
            return Vec::new();
        }
        let available: Vec<_> = fitting.iter().map(|(_, id)| id.as_str()).collect();
        let decided = self.decided.iter().map(DeviceId::as_str);
        let required: Vec<_> = decided.filter(|id| available.contains(id)).collect();
        let (size, policy) = (self.size.count, Policy::default());
        let request =
            Request { available: &available, required: &required, near: &[], size, policy };
        placement::choose(self.topology, request).map(|choice| choice.devices).unwrap_or_default()
    }

    /// Reason why a decided GPU is not used.
    pub(super) fn rejection(&self) -> Option<String> {
        self.decided.iter().find_map(|decided| match self.gpus.get(decided) {
            Some(gpu) => self.obstacle(decided, gpu),
            None => Some("the pod may not share it, or it is not on this node".to_owned()),
        })
    }

    fn obstacle(&self, id: &DeviceId, gpu: &ShareableGpu) -> Option<String> {
        let (free, requested) = (self.free(id, gpu), self.size.amounts_on(gpu.memory_mib));
        let is_full = !requested.is_within(free);
        let full = || format!("{requested} are requested, and {free} are free");
        gpu.obstacle.clone().or_else(|| is_full.then(full))
    }

    /// Amounts that are free on a GPU.
    fn free(&self, id: &DeviceId, gpu: &ShareableGpu) -> Amounts {
        let total = Amounts { memory_mib: gpu.memory_mib, compute_percent: FULL_COMPUTE_PERCENT };
        let usage = self.ledger.portion(id).map_or_else(Amounts::default, |portion| Amounts {
            memory_mib: portion.memory,
            compute_percent: portion.compute,
        });
        total.saturating_sub(usage.saturating_add(self.unknown))
    }
}

#[cfg(test)]
mod tests {
    use windlass_allocations::ledger::{ClaimRef, ClaimUse, Overlaps, Portion, SharedLedger};
    use windlass_config::ShareMethod;

    use super::*;

    fn id(text: &str) -> DeviceId {
        text.parse().expect("an id")
    }

    fn gib(count: u64) -> Amounts {
        Amounts { memory_mib: count * 1024, compute_percent: 0 }
    }

    /// GPUs of 80 GiB, with the GiB that pods use of each.
    fn node(gpus: &[(&str, u64)]) -> (ShareableGpus, Ledger) {
        let ledger = SharedLedger::default();
        let total_mib = gib(80).memory_mib;
        for (gpu, used_gib) in gpus.iter().filter(|(_, used_gib)| *used_gib > 0) {
            let memory = gib(*used_gib).memory_mib;
            let method = ShareMethod::TimeSlicing;
            let usage =
                ClaimUse::Portion(Portion { method, shares: 1, memory, of: total_mib, compute: 0 });
            let claim = ClaimRef::of_share("ns", gpu, gpu);
            let overlap = Overlaps::default().overlap(&id(gpu));
            ledger.take_for_claim(&claim, &[(overlap, usage)]).expect("free");
        }
        let shareable = gpus
            .iter()
            .map(|(gpu, _)| (id(gpu), ShareableGpu { memory_mib: total_mib, obstacle: None }));
        let ledger = ledger.watch().borrow().clone();
        (shareable.collect(), ledger)
    }

    fn order(gpus: &[(&str, u64)], size: u64, unknown: u64, decided: Option<&str>) -> Vec<String> {
        let (gpus, ledger) = node(gpus);
        let decided: Vec<_> = decided.map(id).into_iter().collect();
        let (size, unknown) = (ShareSize::of_one(gib(size)), gib(unknown));
        let request = ShareRequest {
            gpus: &gpus,
            topology: &Topology::default(),
            ledger: &ledger,
            size,
            unknown,
            decided: &decided,
        };
        request.candidates().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_decided_gpu_comes_first_and_then_the_fullest_that_fits() {
        let gpus = [("a", 0), ("b", 40), ("c", 72)];
        assert_eq!(order(&gpus, 8, 0, None), ["c", "b", "a"]);
        assert_eq!(order(&gpus, 8, 0, Some("a")), ["a", "c", "b"]);
        assert_eq!(order(&gpus, 16, 0, Some("c")), ["b", "a"], "the decided one is full");
        assert_eq!(order(&gpus, 8, 0, Some("x")), ["c", "b", "a"], "there is no such GPU");
        assert_eq!(order(&gpus, 81, 0, None), [""; 0]);
    }

    #[test]
    fn amounts_on_unknown_gpus_count_on_each() {
        let gpus = [("a", 0), ("b", 40)];
        assert_eq!(order(&gpus, 30, 20, None), ["a"]);
        assert_eq!(order(&gpus, 30, 60, None), [""; 0]);
    }
}
