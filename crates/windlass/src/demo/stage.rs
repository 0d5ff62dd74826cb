//! Runtime of the demo: a temporary folder with simulated machine, real agent and embedded kubelet.

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
use windlass_config::{Config, HealthPolicy, Places, Policy, SessionLimits};
use windlass_host::causes;
use windlass_kubelet_sim::Kubelet;
use windlass_machine::Machine;
use windlass_node::Agent;
use windlass_resources::NodeState;

use super::{
    boards::Boards,
    claims::{self, ClusterFixture},
    event::Event,
    scene::Scene,
};
use crate::{
    commands::{clock, host_flags},
    logging,
    screen::shell_word,
    simulated,
};

/// Running parts of the demo.
pub(super) struct Stage {
    pub(super) machine: Machine,
    pub(super) boards: Boards,
    pub(super) kubelet: Kubelet,
    pub(super) state: watch::Receiver<Arc<NodeState>>,
    pub(super) agent_started: Instant,
    folder: TempDir,
    stop: CancellationToken,
    /// Cancelled when the agent has ended.
    pub(super) ended: CancellationToken,
    agent: JoinSet<()>,
}

/// Quiet period of the demo; the default is a minute.
pub(super) const QUIET_PERIOD: Duration = Duration::from_secs(1);

const SHUTDOWN_DEADLINE: Duration = Duration::from_secs(5);

/// State folder of the agent.
const STATE: &str = "state";

/// Number of log lines that accompany an error.
const LOG_TAIL: usize = 5;

// === impl Stage ===

impl Stage {
    /// Creates the machine, then starts kubelet and agent.
    pub(super) fn start(scene: Scene, cluster: Option<&ClusterFixture>) -> Result<Self> {
        let Scene { profile, policy, boards } = scene;
        let folder = simulated::folder()?;
        let levels = Targets::new().with_default(LevelFilter::INFO);
        logging::to_file(&log(folder.path()), levels).context("cannot write the agent's log")?;
        let machine = simulated::machine_in(folder.path(), &profile)?;
        let kubelet = simulated::kubelet_in(folder.path())?;
        let agent_started = Instant::now();
        let mut config = config(folder.path(), &machine, policy);
        if let Some(cluster) = cluster {
            config.cluster.kubeconfig = Some(cluster.write_kubeconfig(folder.path())?);
            config.cluster.node_name = Some(claims::NODE.to_owned());
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

    /// Last lines of the agent's log, as context of an error.
    pub(super) fn agent_log_end(&self) -> String {
        let tail = last_lines(&log(self.dir()), LOG_TAIL);
        format!("the demo failed; last lines of the agent's log:\n{tail}\nerror")
    }

    /// Paths and commands for exploration.
    pub(super) fn paths_and_commands(&self) -> Event {
        let settings = self.kubelet.config();
        let machine = shell_word(self.machine.dir());
        let host = host_flags(&self.machine);
        let (kubelet, state) = (shell_word(&settings.dir), shell_word(&self.dir().join(STATE)));
        Event::Kept {
            paths: BTreeMap::from([
                ("machine", self.machine.dir().to_owned()),
                ("host root", self.machine.host_root()),
                ("NVML library", self.machine.nvml_library()),
                ("plugin sockets", settings.plugin_dir()),
                ("pod resources", settings.pod_resources_socket()),
                ("CDI documents", self.cdi_dir()),
                ("agent's log", log(self.dir())),
            ]),
            commands: vec![
                format!("windlass devices {host} --kubelet-dir {kubelet} --state-dir {state}"),
                format!("windlass machine fault {machine} xid:79@0"),
                format!("windlass machine fault {machine} recover@0"),
            ],
        }
    }

    /// Stops agent and kubelet, and removes the folder.
    pub(super) async fn shutdown(mut self) {
        // Hanging calls of the simulated driver end only with the machine.
        self.stop.cancel();
        let agent = async { while self.agent.join_next().await.is_some() {} };
        if timeout(SHUTDOWN_DEADLINE, agent).await.is_err() {
            tracing::warn!("the agent did not stop in time");
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
        places: Places {
            kubelet_dir: folder.join("kubelet"),
            host_root: machine.host_root(),
            host_root_on_node: machine.host_root(),
            nvml_library: Some(machine.nvml_library()).filter(|library| library.exists()),
            cdi_dir: cdi_dir(folder),
            state_dir: folder.join(STATE),
            ..Places::default()
        },
        policy: Policy {
            health: HealthPolicy {
                quiet_period: QUIET_PERIOD,
                probe_interval: QUIET_PERIOD / 2,
                ..policy.health
            },
            ..policy
        },
        session: SessionLimits { check_interval: QUIET_PERIOD / 10, ..SessionLimits::default() },
        ..Config::default()
    }
}

pub(super) fn cdi_dir(folder: &Path) -> PathBuf {
    folder.join("cdi")
}

pub(super) fn log(folder: &Path) -> PathBuf {
    folder.join("agent.log")
}

/// Last lines of a log, as far as it can be read.
pub(super) fn last_lines(log: &Path, count: usize) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}
