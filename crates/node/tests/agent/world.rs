//! A node in a temporary folder: simulated machine, embedded kubelet, and an agent to start.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use windlass_kubelet_api::deviceplugin::device_plugin_client::DevicePluginClient;
use windlass_kubelet_sim::{Kubelet, NodeStatus, Pod};
use windlass_machine::{Machine, Profile};
use windlass_node::{
    Config, StartError,
    config::{HealthPolicy, Policy},
};

use crate::common::node::node;
pub(crate) use crate::common::{
    kubelet::{allocatable, pod_with},
    running::{LIMIT, Running},
};

/// The resource that most tests are about.
pub(crate) const GPU: &str = "nvidia.com/gpu";

/// How long a device must be quiet in these tests.
pub(crate) const QUIET: Duration = Duration::from_millis(300);

/// A node whose parts are started one by one.
pub(crate) struct World {
    pub(crate) machine: Machine,
    pub(crate) config: Config,
    folder: PathBuf,
}

// === impl World ===

impl World {
    /// A machine after a shipped profile.
    pub(crate) fn new(profile: &str) -> Self {
        Self::of(&Profile::named(profile).expect("a shipped profile"))
    }

    /// A machine after any profile.
    pub(crate) fn of(profile: &Profile) -> Self {
        let (folder, machine, config) = node(profile, policy());
        Self { machine, config, folder }
    }

    pub(crate) fn agent(&self) -> Running {
        self.try_agent().expect("the agent starts")
    }

    pub(crate) fn try_agent(&self) -> Result<Running, StartError> {
        Running::start(&self.config)
    }

    pub(crate) fn kubelet(&self) -> Kubelet {
        Kubelet::start(self.kubelet_config()).expect("the embedded kubelet starts")
    }

    pub(crate) fn kubelet_config(&self) -> windlass_kubelet_sim::Config {
        let mut config = windlass_kubelet_sim::Config::new(&self.config.kubelet_dir);
        config.numa_nodes = vec![0, 1];
        config
    }

    /// Kubelet and agent, once the kubelet knows `count` allocatable GPUs.
    pub(crate) async fn serving(&self, count: usize) -> (Kubelet, Running) {
        let kubelet = self.kubelet();
        let agent = self.agent();
        allocatable(&kubelet, GPU, count).await;
        (kubelet, agent)
    }

    /// The socket that the agent serves GPUs on.
    pub(crate) fn socket(&self) -> PathBuf {
        self.config.kubelet_dir.join("device-plugins").join("windlass-nvidia.com_gpu.sock")
    }

    pub(crate) fn path(&self) -> &Path {
        &self.folder
    }
}

/// What an agent does by itself, with less patience.
fn policy() -> Policy {
    let health = HealthPolicy {
        quiet_period: QUIET,
        probe_interval: Duration::from_millis(100),
        call_deadline: Duration::from_millis(400),
        event_wait: Duration::from_millis(200),
        ..HealthPolicy::default()
    };
    Policy { health, ..Policy::default() }
}

/// Waits until the kubelet has this capacity and these allocatable devices of the GPU resource.
pub(crate) async fn counts(kubelet: &Kubelet, expected: (usize, usize)) -> Arc<NodeStatus> {
    let reached = |node: &NodeStatus| node.counts(GPU) == Some(expected);
    kubelet.wait_for(reached, LIMIT).await.unwrap_or_else(|late| panic!("{late}"))
}

/// A pod of one container that asks for GPUs.
pub(crate) fn pod(name: &str, gpus: u64) -> Pod {
    pod_with(name, GPU, gpus)
}

/// A client on the kubelet's connection, for calls that no kubelet makes.
pub(crate) async fn client(
    kubelet: &Kubelet,
    resource: &str,
) -> DevicePluginClient<tonic::transport::Channel> {
    kubelet.plugin(resource).await.expect("registered")
}

/// The id of the GPU at an index.
pub(crate) fn gpu_id(agent: &Running, index: u32) -> String {
    let state = agent.state.borrow();
    let mut gpus = state.inventory.of_kind(windlass_core::device::DeviceKind::Gpu);
    gpus.find(|gpu| gpu.index == index).expect("a GPU of that index").id.to_string()
}
