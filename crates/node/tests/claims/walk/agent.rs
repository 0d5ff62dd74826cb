//! The agent as a process of its own, which can be killed and frozen: the test program again, with an environment
//! variable.

use std::{
    env,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Mutex,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::sleep,
};
use windlass_config::{ClusterAccess, Config, DraOffer, DraPolicy, KubeletLimits, Policy};
use windlass_host::clock::Clock;
use windlass_machine::Machine;
use windlass_node::Agent;
use windlass_testkit::{TIMEOUT, agent_config};

use crate::claims::world::NODE;

/// The agent of a walk: one process at a time.
pub(super) struct AgentProcess {
    folder: PathBuf,
    child: Option<Child>,
}

/// Delay of the kubelet's checkpoint: seconds on a real node.
pub(super) const CHECKPOINT_DELAY: Duration = Duration::from_millis(150);

/// Environment variable with the folder of the agent. A process with it runs the agent.
const FOLDER: &str = "WINDLASS_RANDOM_AGENT";

/// Name of the test below, which runs the agent.
const TEST_NAME: &str =
    "claims::walk::agent::runs_the_agent_of_a_walk_if_the_environment_names_its_folder";

/// Folder that shows the agent a part of the kubelet's folder.
const POD_FOLDER: &str = "pod";

const LOG: &str = "agent.log";

/// Log of the previous process.
const PREVIOUS_LOG: &str = "earlier.log";

/// Number of bytes of each log that a failure shows.
const MAX_SHOWN: usize = 8_000;

// === impl AgentProcess ===

impl AgentProcess {
    pub(super) fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), child: None }
    }

    pub(super) fn start(&mut self) {
        let log = self.folder.join(LOG);
        if log.exists() {
            fs::rename(&log, self.folder.join(PREVIOUS_LOG)).expect("renamed");
        }
        let file = File::options().create(true).append(true).open(&log).expect("created");
        let output = file.try_clone().expect("a descriptor");
        let mut command = Command::new(env::current_exe().expect("this program"));
        command.args(["--exact", TEST_NAME, "--nocapture"]).env(FOLDER, &self.folder);
        command.stdin(Stdio::null()).stdout(output).stderr(file);
        self.child = Some(command.spawn().expect("it starts"));
    }

    fn child(&mut self) -> &mut Child {
        self.child.as_mut().expect("started")
    }

    pub(super) fn signal(&mut self, signal_number: Signal) {
        kill_process(Pid::from_child(self.child()), signal_number)
            .expect("the process was not reaped");
    }

    /// Kills the process at once.
    pub(super) fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.child().wait().expect("it ends");
    }

    /// Sends SIGTERM, and waits for the end of the process.
    pub(super) async fn terminate(&mut self) {
        self.signal(Signal::TERM);
        let start = Instant::now();
        let status = loop {
            match self.child().try_wait().expect("a child") {
                Some(status) => break status,
                None => assert!(start.elapsed() < TIMEOUT, "it does not end"),
            }
            sleep(Duration::from_millis(1)).await;
        };
        // A process that does not handle the signal yet ends by it.
        let has_ended_cleanly = status.success() || status.code().is_none();
        assert!(has_ended_cleanly, "it ended with {status}");
    }

    /// Checks that the process has not ended by itself.
    pub(super) fn check_running(&mut self) {
        let ended = self.child().try_wait().expect("a child");
        assert!(ended.is_none(), "the agent ended by itself: {ended:?}");
    }

    #[expect(clippy::print_stderr, reason = "the logs show the reason of a failed walk")]
    fn print_logs(&self) {
        for name in [PREVIOUS_LOG, LOG] {
            let log = fs::read_to_string(self.folder.join(name)).unwrap_or_default();
            let from = log.len().saturating_sub(MAX_SHOWN);
            let from = (from..log.len()).find(|at| log.is_char_boundary(*at)).unwrap_or_default();
            eprintln!("--- {name}\n{}", &log[from..]);
        }
    }
}

impl Drop for AgentProcess {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            self.print_logs();
        }
    }
}

/// Configuration of an agent whose paths are in the folder.
pub(super) fn config(folder: &Path) -> Config {
    let machine = Machine::open(&folder.join("machine")).expect("created before");
    let dra = DraPolicy { offer: DraOffer::Beside, ..DraPolicy::default() };
    let config = agent_config(folder, &machine, Policy { dra, ..Policy::default() });
    let cluster = ClusterAccess {
        kubeconfig: Some(folder.join("kubeconfig")),
        node_name: Some(NODE.to_owned()),
        ..ClusterAccess::default()
    };
    let kubelet_limits =
        KubeletLimits { checkpoint_delay: CHECKPOINT_DELAY, ..config.kubelet_limits };
    Config { cluster, kubelet_limits, ..config }
}

/// The configuration with the kubelet's folder as it is mounted for the agent.
fn with_mounts(folder: &Path, mut config: Config) -> Config {
    let mounted_folder = folder.join(POD_FOLDER);
    if mounted_folder.exists() {
        config.places.kubelet_dir = mounted_folder;
    }
    config
}

#[tokio::test]
async fn runs_the_agent_of_a_walk_if_the_environment_names_its_folder() {
    let Some(folder) = env::var_os(FOLDER).map(PathBuf::from) else { return };
    let mut sigterm = signal(SignalKind::terminate()).expect("a handler");
    // A walk that is killed leaves no agent behind.
    set_parent_process_death_signal(Some(Signal::KILL)).expect("the kernel knows it");
    let log = File::options().append(true).open(folder.join(LOG)).expect("created before");
    tracing_subscriber::fmt().with_ansi(false).with_writer(Mutex::new(log)).init();
    let config = with_mounts(&folder, config(&folder));
    let agent = Agent::start(&config, Clock::starting_at(Timestamp::now())).expect("it starts");
    let stop = async { sigterm.recv().await.unwrap_or_default() };
    agent.run(stop).await.expect("no part fails");
}
