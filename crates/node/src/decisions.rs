//! The cluster half's placements of whole GPUs: published until the kubelet admits the pod, and corrected if the pod
//! got other GPUs.
//!
//! ```text
//!  pods with placements ──> pending? ──> sets for GetPreferredAllocation
//!  kubelet's checkpoint ──────┘  └─────> other GPUs than decided: annotation `windlass.dev/placed`
//! ```
//!
//! `GetPreferredAllocation` does not name the pod. Two pods with equal requests may get each other's GPUs; then both
//! placements are corrected.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;
use windlass_allocations::follow::{AllocationsReader, ContainerIds};
use windlass_cluster::{
    Client, Pods,
    placed_pods::{self, PlacedPod},
};
use windlass_config::Policy;
use windlass_core::{
    annotation::{PlacedGpu, PodPlacement},
    device::DeviceId,
    replica::device_of_id,
};
use windlass_deviceplugin::ClusterDecisions;
use windlass_host::{
    or_pending,
    watch::{changed, until},
};
use windlass_resources::NodeState;

use crate::{metrics::ShareMetrics, shares::annotate};

/// Dependencies.
pub(crate) struct Deps {
    pub(crate) policy: watch::Receiver<Arc<Policy>>,
    pub(crate) state: watch::Receiver<Arc<NodeState>>,
    pub(crate) allocations: AllocationsReader,
    pub(crate) cluster: Client,
    pub(crate) metrics: ShareMetrics,
    pub(crate) decided_sets: watch::Sender<Arc<ClusterDecisions>>,
}

/// Time after which a pod is no longer pending: the kubelet has refused it, or has admitted it without these GPUs.
const PENDING_TIMEOUT: Duration = Duration::from_secs(300);

/// Pause before a failed correction is repeated.
const RETRY_DELAY: Duration = Duration::from_secs(60);

/// Follows decisions while the node publishes its devices, until stopped.
pub(crate) async fn run(mut deps: Deps, stop: CancellationToken) {
    let running = async {
        loop {
            until(&mut deps.policy, |policy| policy.labels.devices).await;
            let (pods, pod_watch) = placed_pods::watch(deps.cluster.clone());
            let mut policy = deps.policy.clone();
            tokio::select! {
                () = pod_watch => {}
                () = handle_pods(&mut deps, pods) => {}
                () = until(&mut policy, |policy| !policy.labels.devices) => {}
            }
            deps.decided_sets.send_replace(Arc::default());
        }
    };
    // On the heap: requests make it large.
    stop.run_until_cancelled(Box::pin(running)).await;
}

/// Publishes the sets of pending pods, and corrects placements.
async fn handle_pods(deps: &mut Deps, mut pods: watch::Receiver<Arc<Vec<PlacedPod>>>) {
    let writer = Pods::new(deps.cluster.clone());
    let mut allocations = deps.allocations.watch();
    let mut subscription = None;
    // Decided GPUs of pods that got other GPUs, by the pod's UID.
    let mut spare: BTreeMap<String, Vec<DeviceId>> = BTreeMap::new();
    // Time of the next attempt at a failed correction, by the pod's UID.
    let mut retry_times: BTreeMap<String, Instant> = BTreeMap::new();
    loop {
        let placed = pods.borrow_and_update().clone();
        let checkpoint = allocations.borrow_and_update().clone();
        let state = deps.state.borrow_and_update().clone();
        let gpus_by_pod = held_gpus(checkpoint.containers().unwrap_or_default(), &state);
        let is_pending = |pod: &&PlacedPod| {
            pod.first_seen.elapsed() < PENDING_TIMEOUT && !has_all_gpus(pod, &gpus_by_pod)
        };
        // Placements of virtual GPUs are not published as sets: a virtual GPU is bound when a container starts.
        let counts_whole_gpus = !state.counts_virtual_gpus();
        let whole_gpu_pods = placed.iter().filter(|pod| counts_whole_gpus && is_whole(pod));
        let (pending, served): (Vec<_>, Vec<_>) = whole_gpu_pods.partition(is_pending);
        spare.retain(|uid, _| placed.iter().any(|pod| pod.pod.uid == *uid));
        retry_times.retain(|uid, _| placed.iter().any(|pod| pod.pod.uid == *uid));
        let is_due = |uid: &str| match retry_times.get(uid) {
            Some(retry_at) => *retry_at <= Instant::now(),
            None => !spare.contains_key(uid),
        };
        let needs_correction =
            |pod: &&PlacedPod| differs(pod, &gpus_by_pod) && is_due(&pod.pod.uid);
        let misplaced: Vec<_> = served.into_iter().filter(needs_correction).collect();
        let decided =
            |pod: &&PlacedPod| (pod.pod.uid.clone(), decided_gpus(pod).cloned().collect());
        spare.extend(misplaced.iter().map(decided));
        let sets = pending.iter().map(|pod| decided_gpus(pod).cloned().collect());
        // If a pod got the GPUs of a pending pod, its own decided GPUs serve that pod.
        let sets = sets.chain(spare.values().filter(|_| !pending.is_empty()).cloned()).collect();
        windlass_host::watch::publish_if_changed(&deps.decided_sets, Arc::new(sets));
        let next_expiry = pending.iter().map(|pod| pod.first_seen + PENDING_TIMEOUT).min();
        subscription =
            next_expiry.and_then(|_| subscription.or_else(|| Some(deps.allocations.follow())));
        for pod in misplaced {
            retry_times.remove(&pod.pod.uid);
            if !correct_placement(pod, &gpus_by_pod, &writer, &deps.metrics).await {
                retry_times.insert(pod.pod.uid.clone(), Instant::now() + RETRY_DELAY);
            }
        }
        let next_event = next_expiry.into_iter().chain(retry_times.values().copied()).min();
        tokio::select! {
            () = changed(&mut pods) => {}
            () = changed(&mut allocations) => {}
            () = changed(&mut deps.state) => {}
            () = or_pending(next_event.map(sleep_until)) => {}
        }
    }
}

/// GPUs of each pod in the kubelet's checkpoint, by the pod's UID.
fn held_gpus(
    containers: &[ContainerIds],
    state: &NodeState,
) -> BTreeMap<String, BTreeSet<DeviceId>> {
    let mut gpus_by_pod: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for ContainerIds { pod, ids, .. } in containers {
        let ids = ids.iter().filter_map(|id| device_of_id(id));
        let is_gpu = |id: &DeviceId| {
            let device = state.inventory.get(id.as_str());
            device.is_some_and(|device| device.family().has_nvml)
        };
        gpus_by_pod.entry(pod.clone()).or_default().extend(ids.filter(is_gpu));
    }
    gpus_by_pod
}

fn is_whole(pod: &PlacedPod) -> bool {
    let devices = &pod.placement.devices;
    !devices.is_empty() && devices.iter().all(PlacedGpu::is_whole)
}

fn decided_gpus(pod: &PlacedPod) -> impl Iterator<Item = &DeviceId> {
    pod.placement.devices.iter().map(|device| &device.id)
}

/// True if the kubelet has allocated as many GPUs to the pod as were decided.
fn has_all_gpus(pod: &PlacedPod, gpus_by_pod: &BTreeMap<String, BTreeSet<DeviceId>>) -> bool {
    gpus_by_pod.get(&pod.pod.uid).is_some_and(|gpus| gpus.len() == pod.placement.devices.len())
}

/// True if a served pod got other GPUs than decided.
fn differs(pod: &PlacedPod, gpus_by_pod: &BTreeMap<String, BTreeSet<DeviceId>>) -> bool {
    let gpus = gpus_by_pod.get(&pod.pod.uid).filter(|_| has_all_gpus(pod, gpus_by_pod));
    gpus.is_some_and(|gpus| !decided_gpus(pod).all(|device| gpus.contains(device)))
}

/// Writes the GPUs of a pod into its annotation. False if that failed.
async fn correct_placement(
    pod: &PlacedPod,
    gpus_by_pod: &BTreeMap<String, BTreeSet<DeviceId>>,
    writer: &Pods,
    metrics: &ShareMetrics,
) -> bool {
    let gpus = gpus_by_pod.get(&pod.pod.uid).into_iter().flatten();
    let placement = PodPlacement { devices: gpus.cloned().map(PlacedGpu::whole).collect() };
    let is_written = annotate(writer, &pod.pod, &placement).await;
    if is_written {
        metrics.count_bound("corrected");
        let (decided, placement) = (pod.placement.to_annotation(), placement.to_annotation());
        let pod = pod.pod.namespaced_name();
        tracing::info!(pod, decided, placement, "kubelet chose other GPUs than decided");
    }
    is_written
}
