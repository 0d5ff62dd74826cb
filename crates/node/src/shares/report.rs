//! Shares of a pod by amounts, for `windlass explain`.

use serde::Serialize;
use windlass_cdi::memory_limits;
use windlass_config::Places;
use windlass_core::{device::DeviceId, enforcement::Enforcement};
use windlass_resources::NodeState;

use super::{
    documents::ShareDocuments,
    hold::{HeldGpu, Hold},
};

/// A pod's share of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodShare {
    /// The GPU.
    pub device: DeviceId,
    /// UID of the pod, as the kubelet has it.
    pub pod_uid: String,
    /// Memory of the share in MiB.
    pub memory_mib: u64,
    /// Memory of the whole GPU in MiB.
    pub of_mib: u64,
    /// Compute of the share in percent of the GPU; 0 is no request.
    pub compute_percent: u64,
    /// Means that keeps the pod to its memory: the driver if the hook has limited a container of it, else the best that the
    /// node has without.
    pub enforcement: Enforcement,
}

/// Shares of a pod on this node, by the CDI documents of the agent. Blocks for small files.
pub fn shares_of(places: &Places, node: &NodeState, namespace: &str, pod: &str) -> Vec<PodShare> {
    let limited = memory_limits::limited(&places.state_dir, &places.host());
    let (documents, _) = ShareDocuments::new(&places.cdi_dir).read();
    let is_of_pod = |hold: &&Hold| (&*hold.pod.namespace, &*hold.pod.name) == (namespace, pod);
    let holds = documents.values().map(|document| &document.hold).filter(is_of_pod);
    let mut shares = Vec::new();
    for hold in holds {
        for gpu in hold.gpus() {
            let by_hook = limited.get(&gpu.device).and_then(|it| it.get(&hold.pod.uid));
            let by = by_hook.copied();
            let by = by.unwrap_or_else(|| node.means.without_driver(&node.policy));
            let share = PodShare::of(hold, gpu, by);
            if !shares.contains(&share) {
                shares.push(share);
            }
        }
    }
    shares
}

// === impl PodShare ===

impl PodShare {
    fn of(hold: &Hold, gpu: &HeldGpu, enforcement: Enforcement) -> Self {
        Self {
            device: gpu.device.clone(),
            pod_uid: hold.pod.uid.clone(),
            memory_mib: gpu.amounts.memory_mib,
            of_mib: gpu.of_mib,
            compute_percent: gpu.amounts.compute_percent,
            enforcement,
        }
    }
}
