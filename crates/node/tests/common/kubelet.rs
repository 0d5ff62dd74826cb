//! What tests ask of the embedded kubelet.

use std::sync::Arc;

use windlass_kubelet_sim::{Container, Kubelet, NodeStatus, Pod};

use super::running::LIMIT;

/// Waits until the kubelet has that many allocatable devices of a resource.
pub(crate) async fn allocatable(
    kubelet: &Kubelet,
    resource: &str,
    count: usize,
) -> Arc<NodeStatus> {
    let enough =
        |node: &NodeStatus| node.counts(resource).is_some_and(|(_, healthy)| healthy == count);
    kubelet.wait_for(enough, LIMIT).await.unwrap_or_else(|late| panic!("{late}"))
}

/// A pod of one container that asks for a resource.
pub(crate) fn pod_with(name: &str, resource: &str, count: u64) -> Pod {
    let limits = [(resource.to_owned(), count)].into();
    Pod::new(name).container(Container { name: "main".to_owned(), limits })
}
