//! A node under test: a simulated machine in a folder, the agent's configuration, and functions that start both.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use jiff::Timestamp;
use windlass_config::{
    CleanupLimits, ClusterAccess, Config, HealthPolicy, HostPaths, KubeletLimits, Policy,
};
use windlass_host::clock::Clock;
use windlass_kubelet_sim::Kubelet;
use windlass_machine::{Machine, MachineProfile, find_driver};
use windlass_node::StartError;
use windlass_resources::NodeState;

use crate::{
    folder::temporary_folder,
    kubelet::{GPU, until_allocatable},
    running::RunningAgent,
};

/// Node whose components a test starts one by one. The end of the test removes the node.
#[derive(Debug)]
pub struct Node {
    /// Simulated machine.
    pub machine: Machine,
    /// Configuration of agents that are started later.
    pub config: Config,
    /// Folder of the node. Tests may create files in it.
    pub folder: PathBuf,
}

/// Health policy with short timeouts.
pub fn health_policy(quiet_period: Duration) -> HealthPolicy {
    let probe_interval = Duration::from_millis(100);
    HealthPolicy { quiet_period, probe_interval, ..HealthPolicy::default() }
}

/// Configuration of an agent, with all its paths in the folder.
pub fn agent_config(folder: &Path, machine: &Machine, mut policy: Policy) -> Config {
    // A stopped agent leaves a thread in the driver's event wait. The next agent in the process shares the driver's
    // lock.
    policy.health.event_wait = policy.health.event_wait.min(Duration::from_millis(200));
    Config {
        places: HostPaths {
            kubelet_dir: folder.join("kubelet"),
            host_root: machine.host_root(),
            host_root_on_node: machine.host_root(),
            nvml_library: Some(machine.nvml_library()),
            state_dir: folder.join("state"),
            mps_dir: "/run/windlass/mps".into(),
            cdi_dir: folder.join("cdi"),
            ..HostPaths::default()
        },
        policy,
        kubelet_limits: short_timeouts(),
        cleanup_limits: CleanupLimits {
            retry_min: Duration::from_millis(20),
            retry_max: Duration::from_millis(200),
            ..CleanupLimits::default()
        },
        ..Config::default()
    }
}

// === impl Node ===

impl Node {
    /// Creates a node from a shipped profile.
    pub fn from_profile(profile: &str, policy: Policy) -> Self {
        Self::new(&MachineProfile::named(profile).expect("a shipped profile"), policy)
    }

    /// Creates a node from a profile.
    pub fn new(profile: &MachineProfile, policy: Policy) -> Self {
        let folder = temporary_folder();
        let driver = find_driver().expect("cargo builds the simulated driver with the tests");
        let machine = Machine::create(&folder.join("machine"), profile, &driver);
        let machine = machine.expect("a machine");
        // The agent waits for the kubelet's folder, which the kubelet creates at its first start. Tests may start the
        // agent first.
        fs::create_dir_all(folder.join("kubelet")).expect("created");
        let config = agent_config(&folder, &machine, policy);
        Self { machine, config, folder }
    }

    /// Joins the node to a cluster under this name. `kubeconfig` is the text of the file.
    #[must_use]
    pub fn with_cluster(mut self, name: &str, kubeconfig: &str) -> Self {
        let path = self.folder.join("kubeconfig");
        fs::write(&path, kubeconfig).expect("written");
        self.config.cluster = ClusterAccess {
            kubeconfig: Some(path),
            node_name: Some(name.to_owned()),
            ..ClusterAccess::default()
        };
        self
    }

    /// Starts the agent.
    pub fn start_agent(&self) -> RunningAgent {
        self.try_start_agent().expect("the agent starts")
    }

    /// Starts the agent, or returns the start error.
    pub fn try_start_agent(&self) -> Result<RunningAgent, StartError> {
        RunningAgent::start(&self.config)
    }

    /// Discovers the devices of the host once, as the agent does, without serving them.
    pub async fn scan_host(&self) -> NodeState {
        windlass_node::agent::scan_host(&self.config, Clock::starting_at(Timestamp::now())).await
    }

    /// Starts the kubelet.
    pub fn start_kubelet(&self) -> Kubelet {
        Kubelet::start(self.kubelet_config()).expect("the embedded kubelet starts")
    }

    /// Starts the kubelet and the agent, and waits until the kubelet reports this number of allocatable GPUs.
    pub async fn start_ready(&self, gpus: usize) -> (Kubelet, RunningAgent) {
        let (kubelet, agent) = (self.start_kubelet(), self.start_agent());
        until_allocatable(&kubelet, GPU, gpus).await;
        (kubelet, agent)
    }

    /// Socket of the agent's GPU plugin.
    pub fn socket(&self) -> PathBuf {
        self.config.places.kubelet_dir.join("device-plugins").join("windlass-nvidia.com_gpu.sock")
    }

    /// Configuration of the kubelet.
    pub fn kubelet_config(&self) -> windlass_kubelet_sim::Config {
        let mut config = windlass_kubelet_sim::Config::new(&self.config.places.kubelet_dir);
        config.numa_nodes = vec![0, 1];
        config
    }
}

fn short_timeouts() -> KubeletLimits {
    KubeletLimits {
        stream_deadline: Duration::from_millis(500),
        retry_min: Duration::from_millis(10),
        retry_max: Duration::from_millis(100),
        checkpoint_delay: Duration::from_millis(50),
        check_interval: Duration::from_millis(500),
        claim_wait: Duration::from_millis(200),
        ..KubeletLimits::default()
    }
}
