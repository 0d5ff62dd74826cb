//! Limits of memory and threads for a claim's programs under MPS.

use windlass_allocations::ledger::{FULL_COMPUTE_PERCENT, Portion};
use windlass_core::{
    cdi::{ContainerEdits, SpecMount as Mount},
    device::Device,
};
use windlass_lifecycle::mps::MpsFolders;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MpsLimits {
    /// Device memory, in mebibytes.
    pub(super) memory_mib: Option<u64>,
    /// Percentage of the multiprocessors.
    pub(super) thread_percent: Option<u64>,
}

/// Variables that CUDA reads in a client of MPS.
const THREADS_VARIABLE: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";
const MEMORY_VARIABLE: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";

// === impl MpsLimits ===

impl MpsLimits {
    pub(super) fn of(portion: Portion) -> Self {
        debug_assert!(portion.method.is_mps(), "time slices have no client");
        let memory_mib = Some(portion.memory).filter(|memory| *memory < portion.of);
        let thread_percent =
            Some(portion.compute).filter(|percent| (1..FULL_COMPUTE_PERCENT).contains(percent));
        Self { memory_mib, thread_percent }
    }

    /// Both limits combined: of memory and of threads, the lower one each.
    pub(super) fn stricter(self, other: Self) -> Self {
        let lower = |one: Option<u64>, other: Option<u64>| one.into_iter().chain(other).min();
        Self {
            memory_mib: lower(self.memory_mib, other.memory_mib),
            thread_percent: lower(self.thread_percent, other.thread_percent),
        }
    }

    /// Edits that make a container a client of its device's daemon, within these limits.
    pub(super) fn edits(self, device: &Device, folders: &MpsFolders) -> ContainerEdits {
        let client = folders.client_edits(&device.id);
        let threads = self.thread_percent.map(|percent| format!("{THREADS_VARIABLE}={percent}"));
        let memory = self.memory_mib.map(|mebibytes| format!("{MEMORY_VARIABLE}=0={mebibytes}M"));
        let env = client.envs.iter().map(|(name, value)| format!("{name}={value}"));
        let mounts = client.mounts.iter();
        ContainerEdits {
            env: env.chain(threads).chain(memory).collect(),
            mounts: mounts.map(|(container, host)| Mount::bind(host, container, true)).collect(),
            ..ContainerEdits::default()
        }
    }
}
