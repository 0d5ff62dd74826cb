//! Test kit: a kubelet in a temporary folder, with helpers for waits, pods and devices.

use std::{collections::BTreeSet, time::Duration};

use tempfile::TempDir;
use windlass_kubelet_api::deviceplugin as wire;
use windlass_kubelet_sim::{
    Config, Container, ContainerAllocation, DeviceIds, Event, Kubelet, NodeStatus, Pod, Rejection,
};

/// Deadline of waits that normally end at once.
pub(crate) const DEADLINE: Duration = Duration::from_secs(5);

/// Time limit that tests let pass.
pub(crate) const SHORT_TIMEOUT: Duration = Duration::from_millis(100);

pub(crate) const GPU: &str = "example.com/gpu";
pub(crate) const NIC: &str = "example.com/nic";

/// A kubelet and its root folder.
pub(crate) struct Node {
    pub(crate) kubelet: Kubelet,
    pub(crate) dir: TempDir,
}

impl Node {
    pub(crate) fn start() -> Self {
        Self::start_with(|_| ())
    }

    /// Starts with a changed configuration.
    pub(crate) fn start_with(change: impl FnOnce(&mut Config)) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        Self::start_in(dir, change)
    }

    /// Starts in an existing folder.
    pub(crate) fn start_in(dir: TempDir, change: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config::new(dir.path());
        config.numa_nodes = vec![0, 1];
        change(&mut config);
        let kubelet = Kubelet::start(config).expect("started");
        Self { kubelet, dir }
    }

    /// Waits until a resource of the node has this capacity and allocatable.
    pub(crate) async fn wait_for_counts(
        &self,
        resource: &str,
        capacity: usize,
        allocatable: usize,
    ) {
        self.wait(|node| node.counts(resource) == Some((capacity, allocatable))).await;
    }

    /// Waits until the node's status fulfils a condition.
    pub(crate) async fn wait(&self, condition: impl FnMut(&NodeStatus) -> bool) {
        if let Err(timeout) = self.kubelet.wait_for(condition, DEADLINE).await {
            panic!("{timeout}");
        }
    }

    /// Waits until the event log has an event that fulfils a condition.
    pub(crate) async fn wait_for_event(&self, condition: impl Fn(&Event) -> bool) {
        let has_event = |events: &[Event]| events.iter().any(&condition);
        if let Err(events) = self.kubelet.events().wait_for(has_event, DEADLINE).await {
            panic!("no such event: {events:#?}");
        }
    }

    /// Admits a pod with one container and returns its devices.
    pub(crate) async fn admit(&self, name: &str, resource: &str, size: u64) -> DeviceIds {
        let admission = self.kubelet.admit(pod(name, resource, size)).await.expect("admitted");
        admission.allocation("c", resource).map(ContainerAllocation::ids).unwrap_or_default()
    }

    /// Expects a pod with one container to be rejected.
    pub(crate) async fn expect_rejection(
        &self,
        name: &str,
        resource: &str,
        size: u64,
    ) -> Rejection {
        self.kubelet.admit(pod(name, resource, size)).await.expect_err("rejected")
    }

    /// Expects that the allocation for a pod fails with exactly this text.
    pub(crate) async fn expect_allocation_error(&self, (name, size): (&str, u64), cause: &str) {
        let rejection = self.expect_rejection(name, GPU, size).await;
        assert_eq!(rejection.reason.to_string(), "UnexpectedAdmissionError");
        let expected =
            format!("Pod was rejected: Allocate failed due to {cause}, which is unexpected");
        assert_eq!(rejection.message, expected);
    }

    /// Ids of a resource's allocated devices.
    pub(crate) fn in_use(&self, resource: &str) -> DeviceIds {
        let node = self.kubelet.status();
        node.resources.get(resource).map(|status| status.in_use.clone()).unwrap_or_default()
    }
}

/// A pod with container `c`.
pub(crate) fn pod(name: &str, resource: &str, size: u64) -> Pod {
    Pod::new(name).container(Container::new("c").limit(resource, size))
}

pub(crate) fn ids(names: &str) -> BTreeSet<String> {
    names.split_whitespace().map(str::to_owned).collect()
}

/// Healthy devices without topology: `d0`, `d1`, ...
pub(crate) fn devices(count: usize) -> Vec<wire::Device> {
    (0..count).map(|index| device(&format!("d{index}"), "Healthy")).collect()
}

pub(crate) fn device(id: &str, health: &str) -> wire::Device {
    wire::Device { id: id.to_owned(), health: health.to_owned(), topology: None }
}

/// A healthy device on these NUMA nodes.
pub(crate) fn device_on_nodes(id: &str, nodes: &[i64]) -> wire::Device {
    let nodes = nodes.iter().map(|id| wire::NumaNode { id: *id }).collect();
    wire::Device { topology: Some(wire::TopologyInfo { nodes }), ..device(id, "Healthy") }
}
