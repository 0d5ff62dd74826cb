//! Node: its resources, and the free part of each.

use crate::{
    gpu::{Gpu, GpuSet, GpuState, ModelSet, WHOLE_MILLI},
    request::{Gpus, Request},
};

/// State of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// CPU, in thousandths of a core.
    pub cpu_milli: ResourceUsage,
    /// Memory in MiB.
    pub memory_mib: ResourceUsage,
    /// Number of pods.
    pub pods: ResourceUsage,
    /// GPUs of the node, by position; at most 64.
    pub gpus: Vec<Gpu>,
}

/// Amount of a node's resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResourceUsage {
    /// Amount allocatable to pods.
    pub total: u32,
    /// Amount that no pod holds.
    pub free: u32,
    /// Amount that pods hold beyond the total.
    excess: u32,
}

/// The part of a node's GPUs that serves one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Part {
    /// The GPUs; empty for a request without GPUs.
    pub gpus: GpuSet,
    /// Memory slices of the MIG instance, a bit each; zero for whole GPUs and shares.
    pub memory_slices: u8,
}

impl Part {
    /// Whole GPUs, or shares of them.
    pub fn of(gpus: GpuSet) -> Self {
        Self { gpus, memory_slices: 0 }
    }
}

/// A part that is not free, or whose number of GPUs differs from the request's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the GPUs {gpus} are not free, or are not as many as requested")]
pub struct Conflict {
    /// The GPUs of the part.
    pub gpus: GpuSet,
}

impl ResourceUsage {
    /// An amount that is completely free.
    pub fn free(total: u32) -> Self {
        Self { total, free: total, excess: 0 }
    }

    /// The used fraction, from 0 to 1; 1 if the total is zero.
    pub fn used_fraction(self) -> f64 {
        if self.total == 0 {
            return 1.0;
        }
        1.0 - f64::from(self.free) / f64::from(self.total)
    }

    /// Allocates the amount. The part above `free` becomes excess: pods of other schedulers may hold more than the
    /// total.
    fn allocate(&mut self, amount: u32) {
        let from_free = amount.min(self.free);
        self.free -= from_free;
        self.excess = self.excess.saturating_add(amount - from_free);
    }

    /// Releases the amount, the excess first.
    fn release(&mut self, amount: u32) {
        let of_excess = amount.min(self.excess);
        self.excess -= of_excess;
        self.free = self.free.saturating_add(amount - of_excess).min(self.total);
    }
}

impl Node {
    /// Allocates a part to a request. Unusable GPUs are accepted: a pod keeps a GPU that fails.
    ///
    /// # Errors
    ///
    /// A GPU of the part has too little free, or the number of GPUs differs from the request's. The node is unchanged.
    pub fn allocate(&mut self, request: &Request, part: Part) -> Result<(), Conflict> {
        let conflict = Conflict { gpus: part.gpus };
        let all_exist = part.gpus.iter().all(|position| position < self.gpus.len());
        if part.gpus.len() != request.gpu_count() || !all_exist {
            return Err(conflict);
        }
        let mut states = [None; 64];
        for position in part.gpus.iter() {
            let gpu = &self.gpus[position];
            states[position] =
                Some(state_after_allocation(gpu, request, part.memory_slices).ok_or(conflict)?);
        }
        for position in part.gpus.iter() {
            self.gpus[position].state =
                states[position].expect("set for each position of the part");
        }
        self.cpu_milli.allocate(request.cpu_milli);
        self.memory_mib.allocate(request.memory_mib);
        self.pods.allocate(1);
        Ok(())
    }

    /// Releases a part that [`allocate`](Self::allocate) allocated to the request.
    pub fn release(&mut self, request: &Request, part: Part) {
        for position in part.gpus.iter() {
            let gpu = &mut self.gpus[position];
            gpu.state = state_after_release(gpu, request, part.memory_slices);
        }
        self.cpu_milli.release(request.cpu_milli);
        self.memory_mib.release(request.memory_mib);
        self.pods.release(1);
    }

    /// Idle parts of the node's GPUs, in thousandths of a GPU.
    pub fn idle_milli(&self) -> u32 {
        self.gpus.iter().map(|gpu| u32::from(gpu.idle_milli())).sum()
    }

    /// The products of the node's GPUs.
    pub fn models(&self) -> ModelSet {
        self.gpus.iter().fold(ModelSet::NONE, |set, gpu| set.with(gpu.model))
    }

    /// Usable GPUs without a holder.
    pub fn free_gpus(&self) -> GpuSet {
        self.gpus_where(Gpu::is_free)
    }

    /// The first GPU of each state among these GPUs. GPUs in the same state are interchangeable.
    pub fn representatives(&self, gpus: GpuSet) -> GpuSet {
        let mut representatives = GpuSet::default();
        for position in gpus.iter() {
            if !representatives
                .iter()
                .any(|representative| self.gpus[representative] == self.gpus[position])
            {
                representatives = representatives.union(GpuSet::single(position));
            }
        }
        representatives
    }

    /// GPUs that satisfy a condition.
    pub fn gpus_where(&self, condition: impl Fn(&Gpu) -> bool) -> GpuSet {
        let positions = self.gpus.iter().enumerate().filter(|(_, gpu)| condition(gpu));
        positions.fold(GpuSet::default(), |set, (position, _)| GpuSet(set.0 | 1 << position))
    }
}

/// State of the GPU once it serves the request; `None` if the GPU cannot serve it.
pub(crate) fn state_after_allocation(
    gpu: &Gpu,
    request: &Request,
    memory_slices: u8,
) -> Option<GpuState> {
    match (request.gpus, gpu.state) {
        (Gpus::Whole(_), _) => gpu.has_no_holder().then_some(GpuState::Whole),
        (Gpus::Share { compute_milli, memory, .. }, GpuState::Shared { free_milli, free_mib }) => {
            Some(GpuState::Shared {
                free_milli: free_milli.checked_sub(compute_milli)?,
                free_mib: free_mib.checked_sub(memory.mib_of(gpu.memory_mib)?)?,
            })
        }
        (Gpus::Partition(_), _) if memory_slices == 0 => None,
        (Gpus::Partition(_), GpuState::Partitioned { memory_slices: used }) => {
            (used & memory_slices == 0)
                .then_some(GpuState::Partitioned { memory_slices: used | memory_slices })
        }
        (Gpus::Partition(_), _) => {
            gpu.has_no_holder().then_some(GpuState::Partitioned { memory_slices })
        }
        _ => None,
    }
}

/// State of the GPU once it no longer serves the request.
fn state_after_release(gpu: &Gpu, request: &Request, memory_slices: u8) -> GpuState {
    let free = Gpu::free(gpu.model, gpu.memory_mib).state;
    match (request.gpus, gpu.state) {
        (Gpus::Share { compute_milli, memory, .. }, GpuState::Shared { free_milli, free_mib }) => {
            let mib = memory.mib_of(gpu.memory_mib).unwrap_or(0);
            GpuState::Shared {
                free_milli: (free_milli + compute_milli).min(WHOLE_MILLI),
                free_mib: (free_mib + mib).min(gpu.memory_mib),
            }
        }
        (Gpus::Partition(_), GpuState::Partitioned { memory_slices: used })
            if used != memory_slices =>
        {
            GpuState::Partitioned { memory_slices: used & !memory_slices }
        }
        (Gpus::Partition(_), GpuState::Partitioned { .. }) | (Gpus::Whole(_), GpuState::Whole) => {
            free
        }
        // A share with zero amounts leaves the GPU free, so the GPU may be held as a whole when this share ends.
        (_, state) => state,
    }
}
