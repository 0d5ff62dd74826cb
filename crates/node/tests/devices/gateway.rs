//! A node that is the gateway of simulated Darwin3 boards: what it gives away is reached by network.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::time::{Instant, sleep, timeout};
use windlass_kubelet_sim::{Admission, Grant, Kubelet, StartError};
use windlass_machine::{Board, BoardAddresses, BoardEvent};
use windlass_node::{
    Config,
    config::{
        Find, Give, Handover, HandoverLimits, HealthPolicy, Policy, SessionLimits, SourceRule,
        Step, StepAction,
    },
    state::NodeState,
};

pub(crate) use crate::common::running::{LIMIT, Running};
use crate::common::{
    folder::temporary_folder,
    kubelet::{allocatable, pod_with},
};

/// What the boards are offered as.
pub(crate) const BOARDS: &str = "zj.com/darwin3";

/// What nothing is done to between containers.
pub(crate) const SPARES: &str = "example.com/spare";

/// How long one step may take.
pub(crate) const STEP: Duration = Duration::from_millis(300);

/// The clock that a board is set to before a container starts.
pub(crate) const MHZ: u32 = 200;

/// Differs from boot to boot.
const BOOT_ID: &str = "proc/sys/kernel/random/boot_id";

/// A gateway with its boards, and with files that stand for devices which need nothing.
pub(crate) struct Gateway {
    pub(crate) boards: Vec<Board>,
    pub(crate) config: Config,
    folder: PathBuf,
}

// === impl Gateway ===

impl Gateway {
    pub(crate) fn new(boards: usize) -> Self {
        let folder = temporary_folder();
        let boards: Vec<_> = (0..boards)
            .map(|_| Board::start(&BoardAddresses::any()).expect("free ports"))
            .collect();
        let config = config(&folder, vec![board_rule(&boards), spare_rule()]);
        let gateway = Self { boards, config, folder };
        (0..8).for_each(|index| gateway.write(&format!("etc/spare/{index}"), ""));
        gateway.reboot();
        gateway
    }

    /// A boot that the node was not in before.
    pub(crate) fn reboot(&self) {
        let known = fs::read_to_string(self.path(BOOT_ID)).unwrap_or_default();
        self.write(BOOT_ID, &format!("{known}1"));
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.config.host_root.join(path)
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().expect("it has one")).expect("made");
        fs::write(path, text).expect("written");
    }

    /// Puts a file in the place of the folder where the agent keeps what must outlive it.
    pub(crate) fn fill_disk(&self) {
        fs::remove_dir_all(&self.config.state_dir).expect("there");
        fs::write(&self.config.state_dir, "").expect("written");
    }

    pub(crate) fn empty_disk(&self) {
        fs::remove_file(&self.config.state_dir).expect("there");
    }

    pub(crate) fn kubelet(&self) -> Kubelet {
        let config = windlass_kubelet_sim::Config::new(self.folder.join("kubelet"));
        Kubelet::start(config).expect("the embedded kubelet starts")
    }

    pub(crate) fn agent(&self) -> Running {
        Running::start(&self.config).expect("the agent starts")
    }

    /// Kubelet and agent, once all boards may be given away, and a pod that has nothing: a kubelet that
    /// tells of no pod at all is believed much later.
    pub(crate) async fn serving(&self) -> (Kubelet, Running) {
        let kubelet = self.kubelet();
        let agent = self.agent();
        self.allocatable(&kubelet, self.boards.len()).await;
        admit(&kubelet, "idle", SPARES).await;
        (kubelet, agent)
    }

    /// Waits until the kubelet may give that many boards away.
    pub(crate) async fn allocatable(&self, kubelet: &Kubelet, count: usize) {
        for (resource, count) in [(BOARDS, count), (SPARES, 8)] {
            allocatable(kubelet, resource, count).await;
        }
    }

    /// Which board a pod got.
    pub(crate) fn board_of(&self, admission: &Admission) -> usize {
        let allotment = admission.allotment("main", BOARDS).expect("it asked for one");
        let id = allotment.devices.values().flatten().next().expect("one");
        self.boards.iter().position(|board| id_of(board) == *id).expect("a board's id")
    }

    /// What happens to a board, until it is this or the time is over.
    pub(crate) async fn happens(&self, board: usize, expected: &[BoardEvent]) {
        let (mut events, deadline) = (Vec::new(), Instant::now() + LIMIT);
        while events.len() < expected.len() && Instant::now() < deadline {
            sleep(Duration::from_millis(5)).await;
            events.extend(self.boards[board].take_events());
        }
        assert_eq!(events, expected);
    }
}

/// Puts a network on a board, as its user's program does.
pub(crate) fn deploy(board: &Board) {
    let mut stream = TcpStream::connect(board.data()).expect("it listens");
    stream.set_read_timeout(Some(LIMIT)).expect("a limit");
    let message = [0x7000_u32, 1, 0, 0, 0, 42].map(u32::to_le_bytes).concat();
    stream.write_all(&message).expect("sent");
    stream.read_exact(&mut [0; 36]).expect("answered");
    assert!(board.is_deployed());
}

/// Admits a pod with one container that asks for one of a resource.
pub(crate) async fn admit(kubelet: &Kubelet, name: &str, resource: &str) -> Admission {
    kubelet
        .admit(pod_with(name, resource, 1))
        .await
        .unwrap_or_else(|rejection| panic!("{rejection}"))
}

/// Starts a pod's container.
pub(crate) async fn start(kubelet: &Kubelet, name: &str) -> Result<Grant, StartError> {
    let uid = format!("{name}-uid");
    let starting = timeout(LIMIT, kubelet.start_container(&uid, "main"));
    starting.await.expect("it starts in time or says why not")
}

/// Starts a pod's container, as often as it takes: a kubelet tries again.
pub(crate) async fn start_at_last(kubelet: &Kubelet, name: &str) {
    let starting = async {
        while start(kubelet, name).await.is_err() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LIMIT, starting).await.expect("it starts in time");
}

/// Deletes a pod, and has the kubelet notice: it does at the next Allocate for whatever resource.
pub(crate) async fn delete(kubelet: &Kubelet, name: &str) {
    kubelet.delete(&format!("{name}-uid")).await;
    admit(kubelet, &format!("after-{name}"), SPARES).await;
}

fn id_of(board: &Board) -> String {
    format!("darwin3-{}", board.control().to_string().replace(':', "-"))
}

fn step(target: &str) -> Step {
    let url = format!("http://{{endpoint}}/{target}");
    Step { action: StepAction::Http(url), timeout: STEP }
}

fn board_rule(boards: &[Board]) -> SourceRule {
    let endpoints = boards.iter().map(|board| board.control().to_string()).collect();
    let handover = Handover {
        prepare: vec![step("chip_reset"), step(&format!("set_frequency?freq={MHZ}"))],
        release: vec![step("chip_reset")],
    };
    let new = SourceRule::new("darwin3".parse().expect("a name"), Find::Endpoints(endpoints));
    let give = told("DARWIN3_CONTROL", "http://{endpoint}");
    SourceRule { resource: BOARDS.parse().ok(), handover, give, ..new }
}

fn spare_rule() -> SourceRule {
    let find = Find::Files("/etc/spare".into());
    let new = SourceRule::new("spare".parse().expect("a name"), find);
    SourceRule { resource: SPARES.parse().ok(), give: told("SPARE", "{name}"), ..new }
}

/// What a container gets that is told where something is.
fn told(variable: &str, text: &str) -> Give {
    Give { env: [(variable.to_owned(), text.to_owned())].into(), ..Give::default() }
}

fn config(folder: &Path, sources: Vec<SourceRule>) -> Config {
    let host_root = folder.join("host");
    fs::create_dir_all(folder.join("kubelet")).expect("made");
    let health = HealthPolicy {
        quiet_period: Duration::from_millis(20),
        probe_interval: Duration::from_millis(100),
        ..HealthPolicy::default()
    };
    Config {
        kubelet_dir: folder.join("kubelet"),
        host_root_on_node: host_root.clone(),
        host_root,
        state_dir: folder.join("state"),
        cdi_dir: folder.join("cdi"),
        policy: Policy { health, sources, ..Policy::default() },
        session: SessionLimits {
            retry_first: Duration::from_millis(10),
            retry_most: Duration::from_millis(100),
            look_interval: Duration::from_millis(100),
            ..SessionLimits::default()
        },
        handover: HandoverLimits {
            retry_first: Duration::from_millis(20),
            retry_most: Duration::from_millis(200),
            ..HandoverLimits::default()
        },
        ..Config::default()
    }
}

// === impl Running ===

impl Running {
    /// Why a board may not be given away, once it is for a reason that contains this.
    pub(crate) async fn until_withheld(&self, board: &Board, why: &str) {
        let board = id_of(board);
        let is_it = |state: &NodeState| {
            let mut all = state.offerings().into_iter();
            all.any(|(id, offering)| {
                let obstacle = offering.obstacle.unwrap_or_default();
                id.as_str() == board && obstacle.contains(why)
            })
        };
        self.until(|state| is_it(state)).await;
    }
}
