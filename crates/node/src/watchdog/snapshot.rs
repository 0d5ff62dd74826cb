//! Snapshot of the shared GPUs for metrics: measurements, limits and their enforcement.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::Instant;
use windlass_allocations::ledger::ClaimRef;
use windlass_cdi::memory_limits::LimitedHolders;
use windlass_config::WatchdogAction;
use windlass_core::{device::DeviceId, enforcement::Enforcement};
use windlass_host::container::ContainerId;

use super::{
    accounts::MemoryAccounts,
    limits::{GpuLimits, Limit, Limits},
    tenants::Tenants,
};
use crate::metrics::{ContainerUse, HolderLimit, SharedGpu, SharedGpus};

/// Measurement and enforcement of each shared GPU.
#[derive(Debug, Default)]
pub(super) struct GpuStates {
    /// True if the watchdog acts.
    is_enforcing: bool,
    /// Age up to which a measurement is recent.
    max_age: Duration,
    /// Start of each GPU's running or latest measurement.
    started_at: BTreeMap<DeviceId, Instant>,
    /// End of each GPU's latest measurement, unless that failed.
    measured: BTreeMap<DeviceId, Instant>,
    uncounted: BTreeMap<DeviceId, Uncounted>,
    /// Reasons why GPUs cannot be measured.
    unmeasured: BTreeMap<DeviceId, String>,
    /// UIDs of pods on GPUs of DRM drivers whose memory cannot be measured, and of their claims.
    hidden: BTreeSet<String>,
    /// UIDs of pods that may use a GPU with claims, but whose own claims are unknown.
    pub(super) unidentified: BTreeMap<DeviceId, BTreeSet<String>>,
    /// Pods and claims that the driver or the kernel limits.
    pub(super) limited: LimitedHolders,
}

/// Memory in use on a GPU that its driver counts for no process.
#[derive(Clone, Copy, Debug, Default)]
struct Uncounted {
    bytes: u64,
    /// Number of consecutive measurements of at least [`UNCOUNTED_THRESHOLD`].
    repeats: u32,
}

/// Number of intervals for which a measurement is recent, and the shortest such time.
const RECENT_INTERVALS: u32 = 3;
const MIN_MAX_AGE: Duration = Duration::from_secs(5);

/// Uncounted memory in bytes that exceeds the driver's own, and the number of consecutive measurements before it is
/// logged: an ending program leaves the driver's list before its memory is free.
const UNCOUNTED_THRESHOLD: u64 = 512 << 20;
const UNCOUNTED_REPEATS: u32 = 3;

/// All shared GPUs.
pub(super) fn snapshot(
    limits: &Limits,
    accounts: &MemoryAccounts,
    tenants: &Tenants,
    state: &GpuStates,
) -> SharedGpus {
    let gpu = |(device, limits): (&DeviceId, &GpuLimits)| {
        let limits = limits.iter().map(|(holder, limit)| {
            let ClaimRef { namespace, name, .. } = tenants.with_name(holder);
            HolderLimit {
                namespace,
                name,
                is_claim: !holder.is_share(),
                mib: limit.mib,
                compute_percent: limit.compute_percent,
                enforcement: state.enforcement(device, holder, limit),
            }
        });
        let gpu = SharedGpu {
            is_measured: state.is_measured(device),
            uncounted_bytes: state.uncounted.get(device).map(|uncounted| uncounted.bytes),
            limits: limits.collect(),
            containers: containers(device, accounts, tenants),
        };
        (device.clone(), gpu)
    };
    limits.iter().map(gpu).collect()
}

// === impl GpuStates ===

impl GpuStates {
    pub(super) fn configure(&mut self, action: WatchdogAction, interval: Duration) {
        self.is_enforcing = action.is_enforcing();
        self.max_age = (interval * RECENT_INTERVALS).max(MIN_MAX_AGE);
    }

    /// Drops GPUs without limits.
    pub(super) fn retain(&mut self, limits: &Limits) {
        self.started_at.retain(|device, _| limits.contains_key(device));
        self.measured.retain(|device, _| limits.contains_key(device));
        self.unmeasured.retain(|device, _| limits.contains_key(device));
        self.uncounted.retain(|device, _| limits.contains_key(device));
    }

    /// Records the start of a measurement.
    pub(super) fn record_start(&mut self, device: &DeviceId) {
        self.started_at.insert(device.clone(), Instant::now());
    }

    /// Records the start of a measurement, unless one is recorded.
    pub(super) fn record_start_once(&mut self, device: &DeviceId) {
        self.started_at.entry(device.clone()).or_insert_with(Instant::now);
    }

    /// True if the running measurement takes longer than a measurement stays recent.
    pub(super) fn is_overdue(&self, device: &DeviceId) -> bool {
        self.started_at.get(device).is_none_or(|started_at| started_at.elapsed() >= self.max_age)
    }

    /// Records a measurement; true if the previous one failed.
    pub(super) fn record_success(&mut self, device: &DeviceId) -> bool {
        self.measured.insert(device.clone(), Instant::now());
        self.unmeasured.remove(device).is_some()
    }

    /// Records the uncounted memory of a GPU, and logs once when it becomes large.
    pub(super) fn record_uncounted(&mut self, device: &DeviceId, bytes: Option<u64>) {
        let previous = self.uncounted.remove(device).unwrap_or_default();
        let Some(bytes) = bytes else { return };
        let repeats =
            if bytes < UNCOUNTED_THRESHOLD { 0 } else { previous.repeats.saturating_add(1) };
        self.uncounted.insert(device.clone(), Uncounted { bytes, repeats });
        if repeats == UNCOUNTED_REPEATS {
            let mib = bytes >> 20;
            tracing::warn!(%device, mib, "memory of a shared GPU that the driver counts for no process: perhaps managed memory");
        }
    }

    /// Records that a GPU cannot be measured; true if the reason is new.
    pub(super) fn record_failure(&mut self, device: &DeviceId, reason: &str) -> bool {
        self.measured.remove(device);
        self.uncounted.remove(device);
        self.unmeasured
            .insert(device.clone(), reason.to_owned())
            .is_none_or(|previous| previous != reason)
    }

    /// Sets the pods whose memory cannot be measured, with their reasons, and the UIDs of their claims. Logs new pods.
    pub(super) fn set_hidden(&mut self, pods: &BTreeMap<String, String>, claims: BTreeSet<String>) {
        for (pod, reason) in pods.iter().filter(|(pod, _)| !self.hidden.contains(*pod)) {
            tracing::warn!(pod, why = reason, "memory of a pod on a shared GPU not measured");
        }
        self.hidden = pods.keys().cloned().chain(claims).collect();
    }

    /// True if the latest measurement is recent.
    fn is_measured(&self, device: &DeviceId) -> bool {
        self.measured.get(device).is_some_and(|measured_at| measured_at.elapsed() < self.max_age)
    }

    /// True if all processes of a holder are known. Those of an unidentified pod may count for any claim.
    fn has_known_processes(&self, device: &DeviceId, holder: &ClaimRef) -> bool {
        let Some(unidentified) = self.unidentified.get(device) else { return true };
        let pod = holder.pod_of_share();
        pod.map_or(unidentified.is_empty(), |pod| !unidentified.contains(pod))
    }

    /// True if the watchdog acts on all memory of a holder.
    fn is_watched(&self, device: &DeviceId, holder: &ClaimRef, uid: &str) -> bool {
        let is_measured = self.is_measured(device) && !self.hidden.contains(uid);
        self.is_enforcing && is_measured && self.has_known_processes(device, holder)
    }

    /// The strongest enforcement that was verified for a holder.
    fn enforcement(&self, device: &DeviceId, holder: &ClaimRef, limit: Limit) -> Enforcement {
        let limited_holders = self.limited.get(device);
        let uid = holder.pod_of_share().unwrap_or(&holder.uid);
        if let Some(enforcement) = limited_holders.and_then(|holders| holders.get(uid)) {
            *enforcement
        } else if limit.is_mps {
            Enforcement::Mps
        } else if self.is_watched(device, holder, uid) {
            Enforcement::Watched
        } else {
            Enforcement::None
        }
    }
}

fn containers(
    device: &DeviceId,
    accounts: &MemoryAccounts,
    tenants: &Tenants,
) -> Vec<ContainerUse> {
    let usages = accounts.usages().filter(|(measured_device, ..)| *measured_device == device);
    let mut use_by_container: BTreeMap<_, (u64, Option<u32>)> = BTreeMap::new();
    for process in usages.flat_map(|(.., usage)| &usage.processes) {
        let (bytes, compute) = use_by_container.entry(&process.container).or_default();
        *bytes = bytes.saturating_add(process.memory_bytes);
        *compute =
            compute.iter().chain(&process.compute_percent).copied().reduce(u32::saturating_add);
    }
    let container_use =
        |(container, (bytes, compute_percent)): (&ContainerId, (u64, Option<u32>))| {
            let pod = tenants.get(&container.pod).map(|tenant| &tenant.pod);
            ContainerUse {
                namespace: pod.map(|pod| pod.namespace.clone()).unwrap_or_default(),
                pod: pod.map_or_else(|| container.pod.clone(), |pod| pod.name.clone()),
                container: tenants.container(container).unwrap_or(&container.id).to_owned(),
                bytes,
                compute_percent,
            }
        };
    use_by_container.into_iter().map(container_use).collect()
}
