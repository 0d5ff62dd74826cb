//! A node in a temporary folder: simulated machine, embedded kubelet, and an agent to start.

use std::{path::PathBuf, sync::Arc, time::Duration};

use jiff::Timestamp;
use tempfile::TempDir;
use tokio::{sync::watch, task::JoinSet, time::timeout};
use tokio_util::sync::CancellationToken;
use windlass_kubelet_api::deviceplugin::device_plugin_client::DevicePluginClient;
use windlass_kubelet_sim::{Container, Kubelet, NodeStatus, Pod};
use windlass_machine::{Machine, Profile, simulated_driver};
use windlass_node::{
    Agent, Config, StartError,
    clock::Clock,
    config::{DriverPlaces, HealthPolicy, Policy, SessionLimits},
    state::NodeState,
};

/// The resource that most tests are about.
pub(crate) const GPU: &str = "nvidia.com/gpu";

/// How long anything may take before a test has failed.
pub(crate) const LIMIT: Duration = Duration::from_secs(10);

/// How long a device must be quiet in these tests.
pub(crate) const QUIET: Duration = Duration::from_millis(300);

/// A node whose parts are started one by one.
pub(crate) struct World {
    pub(crate) machine: Machine,
    pub(crate) config: Config,
    folder: TempDir,
}

/// An agent that runs; it is stopped when dropped, and waited for by [`Running::stop`].
pub(crate) struct Running {
    pub(crate) state: watch::Receiver<Arc<NodeState>>,
    /// Where it serves health and metrics.
    pub(crate) admin: Option<std::net::SocketAddr>,
    stop: CancellationToken,
    task: JoinSet<()>,
}

// === impl World ===

impl World {
    /// A machine after a shipped profile.
    pub(crate) fn new(profile: &str) -> Self {
        Self::of(&Profile::named(profile).expect("a shipped profile"))
    }

    /// A machine after any profile.
    pub(crate) fn of(profile: &Profile) -> Self {
        let folder = temporary_folder();
        let driver = simulated_driver().expect("cargo builds the simulated driver with the tests");
        let machine = Machine::create(&folder.path().join("machine"), profile, &driver);
        let machine = machine.expect("a machine");
        let config = config(&folder, &machine);
        Self { machine, config, folder }
    }

    pub(crate) fn agent(&self) -> Running {
        self.try_agent().expect("the agent starts")
    }

    pub(crate) fn try_agent(&self) -> Result<Running, StartError> {
        Ok(run(Agent::start(&self.config, clock())?))
    }

    /// An agent whose policy may change while it runs.
    pub(crate) fn agent_under(&self, policy: watch::Receiver<Arc<Policy>>) -> Running {
        run(Agent::start_under(&self.config, policy, clock()).expect("the agent starts"))
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

    pub(crate) fn path(&self) -> &std::path::Path {
        self.folder.path()
    }
}

fn clock() -> Clock {
    Clock::starting_at(Timestamp::now())
}

fn run(agent: Agent) -> Running {
    let (state, stop) = (agent.state(), CancellationToken::new());
    let admin = agent.admin_address();
    let token = stop.clone();
    let mut task = JoinSet::new();
    task.spawn(async move { agent.run(token.cancelled()).await.expect("no part fails") });
    Running { state, admin, stop, task }
}

/// In memory where the machine has it: a simulated machine is a thousand small files.
fn temporary_folder() -> TempDir {
    let mut builder = tempfile::Builder::new();
    builder.prefix("wl");
    builder.tempdir_in("/dev/shm").or_else(|_| builder.tempdir()).expect("a temporary folder")
}

fn config(folder: &TempDir, machine: &Machine) -> Config {
    Config {
        kubelet_dir: folder.path().join("kubelet"),
        host_root: machine.host_root(),
        host_root_on_node: machine.host_root(),
        driver: DriverPlaces {
            nvml_library: Some(machine.nvml_library()),
            ..DriverPlaces::default()
        },
        state_dir: folder.path().join("state"),
        mps_dir: "/run/windlass/mps".into(),
        cdi_dir: folder.path().join("cdi"),
        policy: Policy {
            health: HealthPolicy {
                quiet_period: QUIET,
                probe_interval: Duration::from_millis(100),
                call_deadline: Duration::from_millis(400),
                event_wait: Duration::from_millis(200),
                ..HealthPolicy::default()
            },
            ..Policy::default()
        },
        session: SessionLimits {
            stream_deadline: Duration::from_millis(500),
            retry_first: Duration::from_millis(10),
            retry_most: Duration::from_millis(100),
            handover: Duration::from_millis(50),
            look_interval: Duration::from_millis(500),
            ..SessionLimits::default()
        },
        ..Config::default()
    }
}

// === impl Running ===

impl Running {
    /// Waits for the node's state to fulfil a condition.
    pub(crate) async fn until(
        &self,
        condition: impl FnMut(&Arc<NodeState>) -> bool,
    ) -> Arc<NodeState> {
        let mut state = self.state.clone();
        let reached = timeout(LIMIT, state.wait_for(condition)).await;
        let reached = reached.map(|found| found.expect("the agent runs").clone());
        reached.unwrap_or_else(|_| {
            panic!("not in time; the state is {:#?}", self.state.borrow().inventory)
        })
    }

    /// Stops the agent as SIGTERM does.
    pub(crate) async fn stop(mut self) {
        self.stop.cancel();
        let ended = timeout(LIMIT, self.task.join_next()).await.expect("it stops in time");
        ended.expect("there is one").expect("no panic");
    }
}

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

/// Waits until the kubelet has this capacity and these allocatable devices of the GPU resource.
pub(crate) async fn counts(kubelet: &Kubelet, expected: (usize, usize)) -> Arc<NodeStatus> {
    let reached = |node: &NodeStatus| node.counts(GPU) == Some(expected);
    kubelet.wait_for(reached, LIMIT).await.unwrap_or_else(|late| panic!("{late}"))
}

/// A pod of one container that asks for GPUs.
pub(crate) fn pod(name: &str, gpus: u64) -> Pod {
    pod_with(name, GPU, gpus)
}

/// A pod of one container that asks for a resource.
pub(crate) fn pod_with(name: &str, resource: &str, count: u64) -> Pod {
    let limits = [(resource.to_owned(), count)].into();
    Pod::new(name).container(Container { name: "main".to_owned(), limits })
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
