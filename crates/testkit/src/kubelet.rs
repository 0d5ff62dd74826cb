//! Questions to the embedded kubelet.

use std::sync::Arc;

use windlass_kubelet_sim::{Container, Kubelet, NodeStatus, Pod};

use crate::wait::LIMIT;

/// The resource that most tests are about.
pub const GPU: &str = "nvidia.com/gpu";

/// Waits until the kubelet has that many allocatable devices of a resource.
pub async fn allocatable(kubelet: &Kubelet, resource: &str, count: usize) -> Arc<NodeStatus> {
    reached(kubelet, |node| node.counts(resource).is_some_and(|(_, healthy)| healthy == count))
        .await
}

/// Waits until the kubelet has this capacity and these allocatable devices of a resource.
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

/// A pod of one container that asks for a resource.
pub fn pod_with(name: &str, resource: &str, count: u64) -> Pod {
    Pod::new(name).container(Container::new("main").limit(resource, count))
}
