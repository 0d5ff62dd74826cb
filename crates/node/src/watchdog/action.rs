//! Actions against pods that use more memory of a GPU than their share.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use windlass_cluster::{BoundPod, PodWarning, Pods};
use windlass_config::WatchdogAction;
use windlass_core::{device::DeviceId, event_reason::EventReason};
use windlass_host::{Host, blocking, causes, clock::Clock, container::GpuProcess};
use windlass_lifecycle::mps::MpsClients;

use super::{accounts::Violation, compute::ComputeExcess};
use crate::metrics::WatchdogMetrics;

/// Clients and handles that actions need.
#[derive(Clone)]
pub(super) struct Actions {
    pub(super) pods: Option<Pods>,
    pub(super) host: Host,
    pub(super) mps: MpsClients,
    pub(super) clock: Clock,
    pub(super) metrics: WatchdogMetrics,
}

const MIB: u64 = 1 << 20;

/// Time for an MPS daemon to terminate its clients. Afterwards their processes are killed in any case.
const TERMINATION_TIMEOUT: Duration = Duration::from_secs(2);

// === impl Actions ===

impl Actions {
    /// Reports a violation and acts against it. `tenants` has the known pods by their UID. Unknown ones are looked up:
    /// a program may exceed its share before the API server has answered.
    pub(super) async fn perform(
        self,
        action: WatchdogAction,
        violation: Violation,
        mut tenants: BTreeMap<String, BoundPod>,
    ) {
        let pods = violation.usage.processes.iter().map(|process| process.container.pod.clone());
        let pods: BTreeSet<_> = pods.collect();
        let Violation { device, holders, usage } = violation;
        let (used_mib, limit_mib) = (usage.bytes() / MIB, usage.limit_bytes / MIB);
        let names: Vec<_> = holders.iter().map(ToString::to_string).collect();
        let holders = names.join(", ");
        self.metrics.count_violation(action.as_str());
        tracing::warn!(
            %device,
            holders,
            used_mib,
            limit_mib,
            action = action.as_str(),
            "pod uses more memory of a GPU than its share"
        );
        let outcome = match action {
            WatchdogAction::Off | WatchdogAction::Observe => "the pod keeps running".to_owned(),
            WatchdogAction::Evict => {
                self.look_up(&pods, &mut tenants).await;
                self.evict(&tenants).await
            }
            WatchdogAction::Kill => {
                if usage.is_mps {
                    self.terminate(&device, &usage.processes).await;
                }
                self.kill(usage.processes).await
            }
        };
        let note =
            format!("{used_mib} MiB of {device} in use, its share is {limit_mib} MiB: {outcome}");
        self.look_up(&pods, &mut tenants).await;
        for pod in tenants.values() {
            self.warn(pod, EventReason::GPU_MEMORY_EXCEEDED, action, &note).await;
        }
    }

    /// Reports a pod that uses far more of a GPU's time than its share.
    pub(super) async fn report_compute(
        self,
        excess: ComputeExcess,
        mut tenants: BTreeMap<String, BoundPod>,
    ) {
        let ComputeExcess { device, holders, pods, percent, share } = excess;
        let names: Vec<_> = holders.iter().map(ToString::to_string).collect();
        let (holders, percent) = (names.join(", "), format!("{percent:.0}"));
        self.metrics.count_compute_excess();
        tracing::warn!(
            %device,
            holders,
            used_percent = percent,
            share_percent = share,
            "pod uses far more of a busy GPU's time than its share"
        );
        let note = format!(
            "{percent} % of the time of {device} in use over about 60 measurements, its share is {share} %: \
             only time slices limit it"
        );
        self.look_up(&pods, &mut tenants).await;
        for pod in tenants.values() {
            self.warn(pod, EventReason::GPU_COMPUTE_EXCEEDED, WatchdogAction::Observe, &note).await;
        }
    }

    /// Adds the unknown pods to `tenants`.
    async fn look_up(&self, pods: &BTreeSet<String>, tenants: &mut BTreeMap<String, BoundPod>) {
        let Some(api) = &self.pods else { return };
        for uid in pods {
            if tenants.contains_key(uid) {
                continue;
            }
            match api.find(uid).await {
                Ok(pod) => tenants.extend(pod.map(|pod| (uid.clone(), pod))),
                Err(error) => {
                    let error = causes(&error);
                    tracing::debug!(uid, error, "pod on a shared GPU not looked up");
                }
            }
        }
    }

    async fn evict(&self, tenants: &BTreeMap<String, BoundPod>) -> String {
        let Some(pods) = &self.pods else { return "no API server evicts it".to_owned() };
        let mut failed = tenants.is_empty().then(|| "the pod is unknown".to_owned());
        for pod in tenants.values() {
            if let Err(error) = pods.evict(pod).await {
                let (pod, error) = (pod.namespaced_name(), causes(&error));
                tracing::warn!(
                    pod,
                    error,
                    "pod not evicted: it uses more memory of a GPU than its share"
                );
                failed = Some(error);
            }
        }
        match failed {
            None => "the pod is evicted".to_owned(),
            Some(error) => format!("it was not evicted: {error}"),
        }
    }

    /// Terminates the clients through the MPS daemon first: killing one while it uses the GPU can end the others.
    async fn terminate(&self, device: &DeviceId, processes: &[GpuProcess]) {
        let clients: Vec<_> = processes.iter().collect();
        let result = self.mps.terminate(device, &self.host, &clients, TERMINATION_TIMEOUT).await;
        if let Err(error) = result {
            tracing::warn!(%device, error, "MPS client not terminated before its process is killed");
        }
    }

    /// Kills each process, if it still runs in its container.
    async fn kill(&self, processes: Vec<GpuProcess>) -> String {
        let (host, count) = (self.host.clone(), processes.len());
        let failures: Vec<String> = blocking(move || {
            let failure = |process: &GpuProcess| {
                let error = host.kill_in(process.pid, &process.container).err()?;
                Some(format!("process {}: {error}", process.pid))
            };
            processes.iter().filter_map(failure).collect()
        })
        .await;
        match failures.first() {
            None if count == 1 => "its process on the GPU was ended".to_owned(),
            None => format!("its {count} processes on the GPU were ended"),
            Some(error) => {
                tracing::warn!(
                    error,
                    "process not ended: its pod uses more memory of a GPU than its share"
                );
                format!("not all of its processes were ended: {error}")
            }
        }
    }

    async fn warn(&self, pod: &BoundPod, reason: EventReason, action: WatchdogAction, note: &str) {
        let Some(pods) = &self.pods else { return };
        let action = match action {
            WatchdogAction::Off | WatchdogAction::Observe => "Observe",
            WatchdogAction::Evict => "Evict",
            WatchdogAction::Kill => "Kill",
        };
        let at = self.clock.now();
        let warning = PodWarning { reason, action, note, at };
        if let Err(error) = pods.warn(pod, &warning).await {
            let (pod, error) = (pod.namespaced_name(), causes(&error));
            tracing::warn!(pod, error, "event of a pod not written");
        }
    }
}
