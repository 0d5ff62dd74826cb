//! Testbed of the demo: a temporary folder with a simulated machine, the real agent and an embedded kubelet.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result};
use tempfile::TempDir;
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::filter::{LevelFilter, Targets};
use windlass_cluster_sim::api::ApiServer;
use windlass_config::{Config, HealthPolicy, HostPaths, Policy};
use windlass_host::causes;
use windlass_kubelet_sim::Kubelet;
use windlass_lifecycle::mps;
use windlass_machine::Machine;
use windlass_node::Agent;
use windlass_resources::NodeState;

use super::{boards::Boards, event::Event, setup::Setup};
use crate::{
    commands::{clock, host_flags},
    logging,
    screen::shell_word,
    simulated,
};

/// Running machine, boards, kubelet and agent.
pub(super) struct Testbed {
    pub(super) machine: Machine,
    pub(super) boards: Boards,
    pub(super) kubelet: Kubelet,
    pub(super) state: watch::Receiver<Arc<NodeState>>,
    pub(super) agent_started: Instant,
    config: Config,
    folder: TempDir,
    stop: CancellationToken,
    /// Cancelled when the agent has ended.
    pub(super) ended: CancellationToken,
    agent: JoinSet<()>,
}

/// Name of the agent's node.
pub(super) const NODE: &str = "demo";

/// Quiet period of the demo; the default is a minute.
pub(super) const QUIET_PERIOD: Duration = Duration::from_secs(1);

/// Timeout of a driver call that waits for events. An agent's last call outlives it and holds a lock that the next
/// agent in this process needs.
const EVENT_WAIT: Duration = Duration::from_millis(200);

const SHUTDOWN_DEADLINE: Duration = Duration::from_secs(5);

/// State folder of the agent.
const STATE_DIR: &str = "state";

/// Number of log lines that accompany an error.
const LOG_TAIL: usize = 5;

// === impl Testbed ===

impl Testbed {
    /// Creates the machine, then starts kubelet and agent. The agent uses the API server, if there is one.
    pub(super) fn start(setup: Setup, server: Option<&ApiServer>) -> Result<Self> {
        let Setup { profile, policy, boards, check_interval } = setup;
        let folder = simulated::temp_folder()?;
        let levels = Targets::new().with_default(LevelFilter::INFO);
        logging::to_file(&log(folder.path()), levels).context("cannot write the agent's log")?;
        let machine = simulated::create_machine_in(folder.path(), &profile)?;
        let kubelet = simulated::start_kubelet_in(folder.path())?;
        let agent_started = Instant::now();
        let mut config = config(folder.path(), &machine, policy);
        config.kubelet_limits.check_interval = check_interval;
        if let Some(server) = server {
            config.cluster.kubeconfig = Some(write_kubeconfig(server, folder.path())?);
            config.cluster.node_name = Some(NODE.to_owned());
        }
        let agent = Agent::start(&config, clock());
        let agent = agent.context("cannot start the agent")?;
        let state = agent.state();
        let (stop, ended) = (CancellationToken::new(), CancellationToken::new());
        let mut task = JoinSet::new();
        task.spawn(run(agent, stop.clone(), ended.clone()));
        Ok(Self {
            machine,
            boards,
            kubelet,
            state,
            agent_started,
            config,
            folder,
            stop,
            ended,
            agent: task,
        })
    }

    pub(super) fn dir(&self) -> &Path {
        self.folder.path()
    }

    pub(super) fn cdi_dir(&self) -> PathBuf {
        cdi_dir(self.dir())
    }

    /// Path of the API server's kubeconfig. The file exists in demos with an API server.
    pub(super) fn kubeconfig(&self) -> PathBuf {
        kubeconfig(self.dir())
    }

    /// Last lines of the agent's log, as context of an error.
    pub(super) fn agent_log_tail(&self) -> String {
        let tail = last_lines(&log(self.dir()), LOG_TAIL);
        format!("the demo failed; last lines of the agent's log:\n{tail}\nerror")
    }

    /// Paths and commands for exploration.
    pub(super) fn paths_and_commands(&self) -> Event {
        let settings = self.kubelet.config();
        let machine = shell_word(self.machine.dir());
        let host = host_flags(&self.machine);
        let (kubelet, state) = (shell_word(&settings.dir), shell_word(&self.dir().join(STATE_DIR)));
        let mut paths = BTreeMap::from([
            ("machine", self.machine.dir().to_owned()),
            ("host root", self.machine.host_root()),
            ("NVML library", self.machine.nvml_library()),
            ("plugin sockets", settings.plugin_dir()),
            ("pod resources", settings.pod_resources_socket()),
            ("CDI documents", self.cdi_dir()),
            ("agent's log", log(self.dir())),
        ]);
        let mut commands = vec![
            format!("windlass devices {host} --kubelet-dir {kubelet} --state-dir {state}"),
            format!("windlass machine fault {machine} xid:79@0"),
            format!("windlass machine fault {machine} recover@0"),
        ];
        if self.kubeconfig().exists() {
            let kubeconfig = shell_word(&self.kubeconfig());
            paths.insert("kubeconfig", self.kubeconfig());
            commands.push(format!("windlass cluster top --kubeconfig {kubeconfig}"));
        }
        Event::Kept { paths, commands }
    }

    /// Stops agent, MPS daemons and kubelet, and removes the folder.
    pub(super) async fn shutdown(mut self) {
        // Hanging calls of the simulated driver end only with the machine.
        self.stop.cancel();
        let agent = async { while self.agent.join_next().await.is_some() {} };
        if timeout(SHUTDOWN_DEADLINE, agent).await.is_err() {
            tracing::warn!("the agent did not stop in time");
        }
        for (device, result) in mps::stop_all(&self.config.places, &self.config.mps).await {
            if let Err(error) = result {
                tracing::warn!(%device, error, "an MPS daemon of the demo did not stop");
            }
        }
        self.kubelet.shutdown().await;
    }
}

async fn run(agent: Agent, stop: CancellationToken, ended: CancellationToken) {
    if let Err(error) = agent.run(stop.cancelled()).await {
        tracing::error!(error = causes(&error), "the agent failed");
    }
    ended.cancel();
}

fn config(folder: &Path, machine: &Machine, policy: Policy) -> Config {
    Config {
        places: HostPaths {
            kubelet_dir: folder.join("kubelet"),
            host_root: machine.host_root(),
            host_root_on_node: machine.host_root(),
            nvml_library: Some(machine.nvml_library()).filter(|library| library.exists()),
            cdi_dir: cdi_dir(folder),
            state_dir: folder.join(STATE_DIR),
            ..HostPaths::default()
        },
        policy: Policy {
            health: HealthPolicy {
                quiet_period: QUIET_PERIOD,
                probe_interval: QUIET_PERIOD / 2,
                event_wait: EVENT_WAIT,
                ..policy.health
            },
            ..policy
        },
        ..Config::default()
    }
}

/// Writes the kubeconfig of an API server, and returns its path.
pub(super) fn write_kubeconfig(server: &ApiServer, folder: &Path) -> Result<PathBuf> {
    let path = kubeconfig(folder);
    let result = fs::write(&path, server.kubeconfig());
    result.with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

fn kubeconfig(folder: &Path) -> PathBuf {
    folder.join("kubeconfig")
}

pub(super) fn cdi_dir(folder: &Path) -> PathBuf {
    folder.join("cdi")
}

pub(super) fn log(folder: &Path) -> PathBuf {
    folder.join("agent.log")
}

/// Last lines of a log; empty if it cannot be read.
pub(super) fn last_lines(log: &Path, count: usize) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}
