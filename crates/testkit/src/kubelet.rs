//! Waits for the state of the embedded kubelet, and pods for it.

use std::sync::Arc;

use windlass_kubelet_sim::{Container, Event, Kubelet, NodeStatus, Pod};

use crate::wait::TIMEOUT;

/// Resource of most tests.
pub const GPU: &str = "nvidia.com/gpu";

/// Waits until the kubelet reports this number of allocatable devices of a resource.
pub async fn until_allocatable(kubelet: &Kubelet, resource: &str, count: usize) -> Arc<NodeStatus> {
    node_status(kubelet, |node| node.counts(resource).is_some_and(|(_, healthy)| healthy == count))
        .await
}

/// Waits until the kubelet reports the expected counts of a resource: its capacity, and its allocatable devices.
pub async fn until_counts(
    kubelet: &Kubelet,
    resource: &str,
    expected: (usize, usize),
) -> Arc<NodeStatus> {
    node_status(kubelet, |node| node.counts(resource) == Some(expected)).await
}

async fn node_status(
    kubelet: &Kubelet,
    condition: impl FnMut(&NodeStatus) -> bool,
) -> Arc<NodeStatus> {
    kubelet.wait_for(condition, TIMEOUT).await.unwrap_or_else(|timeout| panic!("{timeout}"))
}

/// Number of plugin registrations so far.
pub fn registrations(kubelet: &Kubelet) -> usize {
    kubelet.events().count(is_registration)
}

/// Waits until plugins have registered this many times in total.
pub async fn until_registrations(kubelet: &Kubelet, times: usize) {
    let is_reached =
        |events: &[Event]| events.iter().filter(|event| is_registration(event)).count() >= times;
    let reached = kubelet.events().wait_for(is_reached, TIMEOUT).await;
    reached.unwrap_or_else(|events| panic!("not {times} registrations: {events:#?}"));
}

fn is_registration(event: &Event) -> bool {
    matches!(event, Event::Registered { .. })
}

/// Pod with one container, which requests `count` devices of a resource.
pub fn pod_with(name: &str, resource: &str, count: u64) -> Pod {
    Pod::new(name).container(Container::new("main").limit(resource, count))
}
