//! A node with GPUs, an agent with short intervals, and the helpers that most tests use.

use std::{sync::Arc, time::Duration};

use windlass_config::{HealthPolicy, Policy};
use windlass_core::device::DeviceKind;
use windlass_kubelet_api::deviceplugin::{
    AllocateRequest, ContainerAllocateRequest, device_plugin_client::DevicePluginClient,
};
use windlass_kubelet_sim::{Kubelet, NodeStatus, Pod};
use windlass_machine::MachineProfile;
use windlass_testkit::{GPU, Node, RunningAgent};

/// Quiet period of these tests.
pub(crate) const QUIET_PERIOD: Duration = Duration::from_millis(300);

/// A machine of a shipped profile.
pub(crate) fn gpu_node(profile: &str) -> Node {
    Node::from_profile(profile, policy())
}

/// Node as of [`gpu_node`], whose quiet period is longer than a test: a failed device stays failed.
pub(crate) fn with_long_quiet_period(profile: &str) -> Node {
    let mut node = gpu_node(profile);
    node.config.policy.health.quiet_period = Duration::from_secs(3600);
    node
}

/// A machine of any profile.
pub(crate) fn gpu_node_of(profile: &MachineProfile) -> Node {
    Node::new(profile, policy())
}

/// Policy with short intervals.
fn policy() -> Policy {
    let health = HealthPolicy {
        call_deadline: Duration::from_millis(400),
        event_wait: Duration::from_millis(200),
        ..windlass_testkit::health_policy(QUIET_PERIOD)
    };
    Policy { health, ..Policy::default() }
}

/// Waits until the kubelet has this capacity and these allocatable devices of the GPU resource.
pub(crate) async fn until_gpu_counts(
    kubelet: &Kubelet,
    expected: (usize, usize),
) -> Arc<NodeStatus> {
    windlass_testkit::until_counts(kubelet, GPU, expected).await
}

/// A pod of one container that requests GPUs.
pub(crate) fn pod(name: &str, gpus: u64) -> Pod {
    windlass_testkit::pod_with(name, GPU, gpus)
}

/// A call that allocates these devices to containers.
pub(crate) fn allocation(containers: &[&[String]]) -> AllocateRequest {
    let container = |ids: &&[String]| ContainerAllocateRequest { devices_ids: ids.to_vec() };
    AllocateRequest { container_requests: containers.iter().map(container).collect() }
}

/// A client on the agent's socket, for calls that no kubelet makes.
pub(crate) async fn client(
    kubelet: &Kubelet,
    resource: &str,
) -> DevicePluginClient<tonic::transport::Channel> {
    kubelet.plugin_client(resource).await.expect("registered")
}

/// The id of the GPU at an index.
pub(crate) fn gpu_id(agent: &RunningAgent, index: u32) -> String {
    let state = agent.state.borrow();
    let mut gpus = state.inventory.of_kind(DeviceKind::Gpu);
    gpus.find(|gpu| gpu.index == index).expect("a GPU of that index").id.to_string()
}
