//! The node's GPUs for the cluster half, as an annotation of the Node.

use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use windlass_core::{
    annotation::{NodeDevice, NodeDevices, PodKind},
    device::Device,
    health::HealthState,
    labels::Labels,
};
use windlass_resources::NodeState;

/// Computes the annotation at each change of the node's state, until stopped. The first one waits until the health of
/// all GPUs is known, so that the annotation of the previous agent stays at a restart.
pub(crate) async fn run(
    mut state: watch::Receiver<Arc<NodeState>>,
    sender: watch::Sender<Arc<Labels>>,
    stop: CancellationToken,
) {
    loop {
        let current = state.borrow_and_update().clone();
        let is_known = |gpu: &&Device| gpu.health.state != HealthState::Unknown;
        let gpus = gpus(&current);
        if current.inventory.is_complete() && gpus.iter().all(is_known) {
            let devices = gpus.into_iter().map(|gpu| device(&current, gpu)).collect();
            let virtual_gpus = current.counts_virtual_gpus();
            let simulated = current.inventory.simulated.is_some();
            let text = NodeDevices { devices, virtual_gpus, simulated }.to_annotation();
            let annotations = Labels::from([(NodeDevices::ANNOTATION.to_owned(), text)]);
            windlass_host::watch::publish_if_changed(&sender, Arc::new(annotations));
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = windlass_host::watch::changed(&mut state) => {}
        }
    }
}

/// NVIDIA's whole GPUs, then shareable GPUs of other vendors, each in the order of their indices.
fn gpus(state: &NodeState) -> Vec<&Device> {
    let is_nvidia = |device: &&Device| device.family().has_nvml && !device.kind.is_mig_instance();
    let (mut gpus, others): (Vec<_>, Vec<_>) = state.inventory.devices.iter().partition(is_nvidia);
    gpus.extend(others.into_iter().filter(|gpu| state.shareable.contains_key(&gpu.id)));
    gpus
}

fn device(state: &NodeState, gpu: &Device) -> NodeDevice {
    let memory_mib = gpu.memory_mib().and_then(|mib| u32::try_from(mib).ok());
    NodeDevice {
        id: gpu.id.clone(),
        model: gpu.product().unwrap_or_default().to_owned(),
        memory_mib: memory_mib.unwrap_or_default(),
        obstacle: obstacle(state, gpu),
        failed: gpu.health.failure().is_some(),
        only_for: only_for(state, gpu),
    }
}

/// Restriction of a GPU on a node with several vendors: NVIDIA's resource names count whole GPUs of NVIDIA, and shares
/// count GPUs of the configured vendor.
fn only_for(state: &NodeState, gpu: &Device) -> Option<PodKind> {
    if !gpu.family().has_nvml {
        return Some(PodKind::Shares);
    }
    (gpu.source != state.policy.shares.source).then_some(PodKind::Whole)
}

/// Reason why a GPU accepts no new pods, apart from its holders. The detail of a failure is left out, because it may
/// change with each probe.
fn obstacle(state: &NodeState, gpu: &Device) -> Option<String> {
    let failure = || gpu.health.failure().map(|failure| failure.reason.to_string());
    let partitioned = || gpu.partitioned.then(|| "cut into MIG instances".to_owned());
    let withheld = || state.withheld.get(&gpu.id).cloned();
    let unclean = || Some(format!("cleanup failed: {}", state.failed_cleanups.get(&gpu.id)?.why));
    // The cluster half does not count whole GPUs of other vendors that pods request.
    let other_vendors =
        || state.shareable.get(&gpu.id)?.obstacle.clone().filter(|_| !gpu.family().has_nvml);
    failure().or_else(partitioned).or_else(withheld).or_else(unclean).or_else(other_vendors)
}
