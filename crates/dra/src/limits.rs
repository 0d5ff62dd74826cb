//! Limits of memory and threads for a claim's programs under MPS.

use windlass_allocations::ledger::Portion;
use windlass_core::{
    cdi::{ContainerEdits, SpecMount as Mount},
    device::Device,
};
use windlass_lifecycle::mps::MpsPlaces;

use super::consumable_capacity::WHOLE;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Limits {
    /// Device memory, in mebibytes.
    pub(super) memory: Option<u64>,
    /// Percentage of the multiprocessors.
    pub(super) threads: Option<u64>,
}

/// Variables that CUDA reads in a client of MPS.
const THREADS: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";
const MEMORY: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";

// === impl Limits ===

impl Limits {
    pub(super) fn of(portion: Portion) -> Self {
        debug_assert!(portion.method.is_mps(), "time slices have no client");
        let memory = Some(portion.memory).filter(|memory| *memory < portion.of);
        let threads = Some(portion.compute).filter(|percent| (1..WHOLE).contains(percent));
        Self { memory, threads }
    }

    /// Both limits combined: of memory and of threads, the lower one each.
    pub(super) fn stricter(self, other: Self) -> Self {
        let lower = |one: Option<u64>, other: Option<u64>| one.into_iter().chain(other).min();
        Self {
            memory: lower(self.memory, other.memory),
            threads: lower(self.threads, other.threads),
        }
    }

    /// Edits that make a container a client of its device's daemon, within these limits.
    pub(super) fn edits(self, device: &Device, places: &MpsPlaces) -> ContainerEdits {
        let client = places.container(&device.id);
        let threads = self.threads.map(|percent| format!("{THREADS}={percent}"));
        let memory = self.memory.map(|mebibytes| format!("{MEMORY}=0={mebibytes}M"));
        let env = client.envs.iter().map(|(name, value)| format!("{name}={value}"));
        let mounts = client.mounts.iter();
        ContainerEdits {
            env: env.chain(threads).chain(memory).collect(),
            mounts: mounts.map(|(container, host)| Mount::bound(host, container, true)).collect(),
            ..ContainerEdits::default()
        }
    }
}
