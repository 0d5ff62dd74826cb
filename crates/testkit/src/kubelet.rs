//! Waits for the state of the embedded kubelet, and pods for it.

use std::sync::Arc;

use windlass_kubelet_sim::{Container, Kubelet, NodeStatus, Pod};

use crate::wait::LIMIT;

/// Resource of most tests.
pub const GPU: &str = "nvidia.com/gpu";

/// Waits until the kubelet has this number of allocatable devices of a resource.
pub async fn allocatable(kubelet: &Kubelet, resource: &str, count: usize) -> Arc<NodeStatus> {
    reached(kubelet, |node| node.counts(resource).is_some_and(|(_, healthy)| healthy == count))
        .await
}

/// Waits until the kubelet has this capacity and this number of allocatable devices of a resource.
pub async fn counts(
    kubelet: &Kubelet,
    resource: &str,
    expected: (usize, usize),
) -> Arc<NodeStatus> {
    reached(kubelet, |node| node.counts(resource) == Some(expected)).await
}

async fn reached(kubelet: &Kubelet, condition: impl FnMut(&NodeStatus) -> bool) -> Arc<NodeStatus> {
    kubelet.wait_for(condition, LIMIT).await.unwrap_or_else(|late| panic!("{late}"))
}

/// Pod of one container that requests a resource.
pub fn pod_with(name: &str, resource: &str, count: u64) -> Pod {
    Pod::new(name).container(Container::new("main").limit(resource, count))
}
