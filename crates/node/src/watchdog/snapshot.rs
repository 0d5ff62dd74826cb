//! Memory on shared GPUs at one moment, as metrics show it.

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
    accounts::Accounts,
    limits::{GpuLimits, Limit, Limits},
    tenants::Tenants,
};
use crate::metrics::{ContainerUse, HolderLimit, SharedGpu, SharedGpus};

/// Means against excess on the shared GPUs.
#[derive(Debug, Default)]
pub(super) struct GpuStates {
    /// True if the watchdog acts.
    acts: bool,
    /// Time for which a measurement is recent.
    recent: Duration,
    /// Time at which each GPU's running or latest measurement began.
    begun: BTreeMap<DeviceId, Instant>,
    /// Time of each GPU's latest measurement.
    measured: BTreeMap<DeviceId, Instant>,
    uncounted: BTreeMap<DeviceId, Uncounted>,
    /// Reasons why GPUs cannot be measured.
    unmeasured: BTreeMap<DeviceId, String>,
    /// Pods on GPUs of DRM drivers whose memory cannot be measured, by UID.
    hidden: BTreeSet<String>,
    /// Pods with unknown claims that may use a GPU with claims, by UID.
    pub(super) strangers: BTreeMap<DeviceId, BTreeSet<String>>,
    /// Pods and claims that the driver or the kernel limits.
    pub(super) limited: LimitedHolders,
}

/// Memory in use on a GPU that its driver counts for no process.
#[derive(Clone, Copy, Debug, Default)]
struct Uncounted {
    bytes: u64,
    /// Measurements in a row of much.
    times: u32,
}

/// Intervals for which a measurement is recent, and the shortest such time.
const RECENT_INTERVALS: u32 = 3;
const RECENT: Duration = Duration::from_secs(5);

/// Uncounted memory from which on it is more than the driver's own, in bytes, and measurements in a row that tell so: an ending
/// program leaves the list before its memory is free.
const MUCH_UNCOUNTED: u64 = 512 << 20;
const MUCH_TIMES: u32 = 3;

/// All shared GPUs.
pub(super) fn snapshot(
    limits: &Limits,
    accounts: &Accounts,
    tenants: &Tenants,
    state: &GpuStates,
) -> SharedGpus {
    let gpu = |(device, limits): (&DeviceId, &GpuLimits)| {
        let limits = limits.iter().map(|(holder, limit)| {
            let ClaimRef { namespace, name, .. } = tenants.named(holder);
            HolderLimit {
                namespace,
                name,
                is_claim: !holder.is_share(),
                mib: limit.mib,
                compute_percent: limit.compute_percent,
                by: state.enforcement(device, holder, limit),
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
    pub(super) fn follow(&mut self, action: WatchdogAction, interval: Duration) {
        self.acts = action.acts();
        self.recent = (interval * RECENT_INTERVALS).max(RECENT);
    }

    /// Forgets all other GPUs.
    pub(super) fn retain(&mut self, limits: &Limits) {
        self.begun.retain(|device, _| limits.contains_key(device));
        self.measured.retain(|device, _| limits.contains_key(device));
        self.unmeasured.retain(|device, _| limits.contains_key(device));
        self.uncounted.retain(|device, _| limits.contains_key(device));
    }

    /// Notes that a measurement begins.
    pub(super) fn begun(&mut self, device: &DeviceId) {
        self.begun.insert(device.clone(), Instant::now());
    }

    /// Notes that a measurement runs, unless its begin is known.
    pub(super) fn begun_once(&mut self, device: &DeviceId) {
        self.begun.entry(device.clone()).or_insert_with(Instant::now);
    }

    /// True if the running measurement takes longer than a recent one may be old.
    pub(super) fn is_overdue(&self, device: &DeviceId) -> bool {
        self.begun.get(device).is_none_or(|at| at.elapsed() >= self.recent)
    }

    /// Notes a measurement; true if the one before it failed.
    pub(super) fn measured(&mut self, device: &DeviceId) -> bool {
        self.measured.insert(device.clone(), Instant::now());
        self.unmeasured.remove(device).is_some()
    }

    /// Notes the uncounted memory of a GPU, and logs once when it becomes much.
    pub(super) fn uncounted(&mut self, device: &DeviceId, bytes: Option<u64>) {
        let last = self.uncounted.remove(device).unwrap_or_default();
        let Some(bytes) = bytes else { return };
        let times = if bytes < MUCH_UNCOUNTED { 0 } else { last.times.saturating_add(1) };
        self.uncounted.insert(device.clone(), Uncounted { bytes, times });
        if times == MUCH_TIMES {
            let mib = bytes >> 20;
            tracing::warn!(%device, mib, "memory of a shared GPU that the driver counts for no process: perhaps managed memory");
        }
    }

    /// Notes that a GPU cannot be measured; true if the reason is new.
    pub(super) fn lost(&mut self, device: &DeviceId, why: &str) -> bool {
        self.measured.remove(device);
        self.uncounted.remove(device);
        self.unmeasured.insert(device.clone(), why.to_owned()).is_none_or(|known| known != why)
    }

    /// Takes in the pods whose memory cannot be measured, with the reasons, and the UIDs of their claims.
    pub(super) fn hide(&mut self, pods: &BTreeMap<String, String>, claims: BTreeSet<String>) {
        for (pod, why) in pods.iter().filter(|(pod, _)| !self.hidden.contains(*pod)) {
            tracing::warn!(pod, why, "memory of a pod on a shared GPU not measured");
        }
        self.hidden = pods.keys().cloned().chain(claims).collect();
    }

    /// True if the latest measurement is recent.
    fn is_measured(&self, device: &DeviceId) -> bool {
        self.measured.get(device).is_some_and(|at| at.elapsed() < self.recent)
    }

    /// True if all processes of a holder count for it. A stranger's may be those of any claim.
    fn is_told_apart(&self, device: &DeviceId, holder: &ClaimRef) -> bool {
        let Some(strangers) = self.strangers.get(device) else { return true };
        let pod = holder.pod_of_share();
        pod.map_or(strangers.is_empty(), |pod| !strangers.contains(pod))
    }

    /// True if the watchdog acts on all memory of a holder.
    fn is_watched(&self, device: &DeviceId, holder: &ClaimRef, uid: &str) -> bool {
        let is_measured = self.is_measured(device) && !self.hidden.contains(uid);
        self.acts && is_measured && self.is_told_apart(device, holder)
    }

    /// The strongest means that was seen to work for a holder.
    fn enforcement(&self, device: &DeviceId, holder: &ClaimRef, limit: Limit) -> Enforcement {
        let of_gpu = self.limited.get(device);
        let uid = holder.pod_of_share().unwrap_or(&holder.uid);
        if let Some(by) = of_gpu.and_then(|holders| holders.get(uid)) {
            *by
        } else if limit.is_mps {
            Enforcement::Mps
        } else if self.is_watched(device, holder, uid) {
            Enforcement::Watched
        } else {
            Enforcement::None
        }
    }
}

fn containers(device: &DeviceId, accounts: &Accounts, tenants: &Tenants) -> Vec<ContainerUse> {
    let usages = accounts.usages().filter(|(known, ..)| *known == device);
    let mut all: BTreeMap<_, (u64, Option<u32>)> = BTreeMap::new();
    for process in usages.flat_map(|(.., usage)| &usage.processes) {
        let (bytes, compute) = all.entry(&process.container).or_default();
        *bytes = bytes.saturating_add(process.memory_bytes);
        *compute =
            compute.iter().chain(&process.compute_percent).copied().reduce(u32::saturating_add);
    }
    let memory = |(container, (bytes, compute_percent)): (&ContainerId, (u64, Option<u32>))| {
        let pod = tenants.get(&container.pod).map(|tenant| &tenant.pod);
        ContainerUse {
            namespace: pod.map(|pod| pod.namespace.clone()).unwrap_or_default(),
            pod: pod.map_or_else(|| container.pod.clone(), |pod| pod.name.clone()),
            container: tenants.container(container).unwrap_or(&container.id).to_owned(),
            bytes,
            compute_percent,
        }
    };
    all.into_iter().map(memory).collect()
}
