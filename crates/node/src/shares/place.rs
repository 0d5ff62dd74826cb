//! Choice of a share's GPU: the decided one, or else the GPU that is left with the least.

use windlass_allocations::ledger::Ledger;
use windlass_core::device::DeviceId;
use windlass_resources::offers::{Shareable, ShareableGpu};

use super::hold::Amounts;

/// A share that needs a GPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShareRequest<'a> {
    /// GPUs of which pods may have shares.
    pub(super) gpus: &'a Shareable,
    /// Holders of devices.
    pub(super) ledger: &'a Ledger,
    /// The pod's amounts.
    pub(super) wanted: Amounts,
    /// Amounts of pods whose GPUs are unknown: any GPU may have them.
    pub(super) unknown: Amounts,
    /// GPU that the cluster half decided.
    pub(super) decided: Option<&'a DeviceId>,
}

/// Compute of a GPU in percent.
const WHOLE: u64 = 100;

// === impl ShareRequest ===

impl ShareRequest<'_> {
    /// GPUs that fit, best first. The ledger has the last word.
    pub(super) fn candidates(&self) -> Vec<DeviceId> {
        let fits = |(id, gpu): (&DeviceId, &ShareableGpu)| {
            let is_free = self.obstacle(id, gpu).is_none();
            is_free.then(|| (self.left(id, gpu).without(self.wanted), id.clone()))
        };
        let mut fitting: Vec<_> = self.gpus.iter().filter_map(fits).collect();
        fitting.sort_by_key(|(left, id)| {
            let is_other = self.decided != Some(id);
            (is_other, left.memory_mib, left.compute_percent, id.clone())
        });
        fitting.into_iter().map(|(_, id)| id).collect()
    }

    /// Reason against the decided GPU.
    pub(super) fn against(&self, decided: &DeviceId) -> Option<String> {
        match self.gpus.get(decided) {
            Some(gpu) => self.obstacle(decided, gpu),
            None => Some("it is no GPU of this node that pods share".to_owned()),
        }
    }

    fn obstacle(&self, id: &DeviceId, gpu: &ShareableGpu) -> Option<String> {
        let left = self.left(id, gpu);
        let is_full = !self.wanted.is_within(left);
        let full = || format!("{} are wanted, and {left} are left", self.wanted);
        gpu.obstacle.clone().or_else(|| is_full.then(full))
    }

    /// Amounts that no pod and no claim has.
    fn left(&self, id: &DeviceId, gpu: &ShareableGpu) -> Amounts {
        let all = Amounts { memory_mib: gpu.memory_mib, compute_percent: WHOLE };
        let had = self.ledger.portion(id).map_or_else(Amounts::default, |it| Amounts {
            memory_mib: it.memory,
            compute_percent: it.compute,
        });
        all.without(had.and(self.unknown))
    }
}

#[cfg(test)]
mod tests {
    use windlass_allocations::ledger::{ClaimRef, Overlaps, Portion, SharedLedger, Use};
    use windlass_config::ShareMethod;

    use super::*;

    fn id(text: &str) -> DeviceId {
        text.parse().expect("an id")
    }

    fn gib(count: u64) -> Amounts {
        Amounts { memory_mib: count * 1024, compute_percent: 0 }
    }

    /// GPUs of 80 GiB, with the GiB that pods have of each.
    fn node(gpus: &[(&str, u64)]) -> (Shareable, Ledger) {
        let ledger = SharedLedger::default();
        let of = gib(80).memory_mib;
        for (gpu, had) in gpus.iter().filter(|(_, had)| *had > 0) {
            let memory = gib(*had).memory_mib;
            let method = ShareMethod::TimeSlicing;
            let usage = Use::Portion(Portion { method, shares: 1, memory, of, compute: 0 });
            let claim = ClaimRef::of_share("ns", gpu, gpu);
            let overlap = Overlaps::default().overlap(&id(gpu));
            ledger.take_for_claim(&claim, &[(overlap, usage)]).expect("free");
        }
        let all =
            gpus.iter().map(|(gpu, _)| (id(gpu), ShareableGpu { memory_mib: of, obstacle: None }));
        let ledger = ledger.watch().borrow().clone();
        (all.collect(), ledger)
    }

    fn order(
        gpus: &[(&str, u64)],
        wanted: u64,
        unknown: u64,
        decided: Option<&str>,
    ) -> Vec<String> {
        let (gpus, ledger) = node(gpus);
        let decided = decided.map(id);
        let (wanted, unknown) = (gib(wanted), gib(unknown));
        let request = ShareRequest {
            gpus: &gpus,
            ledger: &ledger,
            wanted,
            unknown,
            decided: decided.as_ref(),
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
