//! A node that is the gateway of simulated Darwin3 boards, which it reaches by network.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

use windlass_config::{DiscoveryRule, EditTemplates, Policy, SourceRule};
use windlass_kubelet_sim::{Admission, Kubelet, RunContainerOptions, StartError};
use windlass_machine::{Board, BoardAddresses, BoardEvent};
use windlass_resources::NodeState;
use windlass_testkit::{
    Node, RunningAgent, TIMEOUT, board_rule, expect_events, health_policy, pod_with, until,
    until_allocatable, within_timeout,
};

use crate::devices::world;

/// Resource of the boards.
pub(crate) const BOARDS: &str = "zj.com/darwin3";

/// Resource of boards without cleanup.
pub(crate) const SPARES: &str = "example.com/spare";

/// Deadline of a step.
pub(crate) const STEP_TIMEOUT: Duration = Duration::from_millis(300);

/// A gateway with its boards, and with files that stand for devices without cleanup.
pub(crate) struct Gateway {
    pub(crate) boards: Vec<Board>,
    pub(crate) node: Node,
}

// === impl Gateway ===

impl Gateway {
    pub(crate) fn new(boards: usize) -> Self {
        let boards: Vec<_> = (0..boards)
            .map(|_| Board::start(&BoardAddresses::ephemeral()).expect("free ports"))
            .collect();
        let health = health_policy(Duration::from_millis(20));
        let sources = vec![board_rule(&boards, STEP_TIMEOUT), spare_rule()];
        let mut node = world::node("", "");
        node.config.policy = Policy { health, sources, ..Policy::default() };
        node.config.kubelet_limits.check_interval = Duration::from_millis(100);
        let gateway = Self { boards, node };
        (0..8).for_each(|index| gateway.node.write(&format!("/etc/spare/{index}"), ""));
        gateway.node.reboot();
        gateway
    }

    /// Puts a file in place of the agent's state folder.
    pub(crate) fn block_state_folder(&self) {
        fs::remove_dir_all(&self.node.config.places.state_dir).expect("there");
        fs::write(&self.node.config.places.state_dir, "").expect("written");
    }

    pub(crate) fn unblock_state_folder(&self) {
        fs::remove_file(&self.node.config.places.state_dir).expect("there");
    }

    /// Kubelet and agent, once all boards are allocatable, and a pod without devices: the agent accepts an empty list
    /// of pods only after a long delay.
    pub(crate) async fn start_ready(&self) -> (Kubelet, RunningAgent) {
        let (kubelet, agent) = (self.node.start_kubelet(), self.node.start_agent());
        self.until_allocatable(&kubelet, self.boards.len()).await;
        admit(&kubelet, "idle", SPARES).await;
        (kubelet, agent)
    }

    /// Waits until this number of boards is allocatable.
    pub(crate) async fn until_allocatable(&self, kubelet: &Kubelet, count: usize) {
        for (resource, count) in [(BOARDS, count), (SPARES, 8)] {
            until_allocatable(kubelet, resource, count).await;
        }
    }

    /// Number of the board that a pod got.
    pub(crate) fn board_of(&self, admission: &Admission) -> usize {
        let allocation = admission.allocation("main", BOARDS).expect("it requested one");
        let id = allocation.devices.values().flatten().next().expect("one");
        self.boards.iter().position(|board| id_of(board) == *id).expect("a board's id")
    }

    /// Waits until a board has these events.
    pub(crate) async fn until_events(&self, board: usize, expected: &[BoardEvent]) {
        expect_events(&self.boards[board], expected).await;
    }

    /// Waits until a board is withheld, for a reason that contains this.
    pub(crate) async fn until_withheld(&self, agent: &RunningAgent, board: usize, reason: &str) {
        let board = id_of(&self.boards[board]);
        let is_withheld = |state: &NodeState| {
            let mut offers = state.device_offers().into_iter();
            offers.any(|(id, offer)| {
                let obstacle = offer.obstacle.unwrap_or_default();
                id.as_str() == board && obstacle.contains(reason)
            })
        };
        agent.until(|state| is_withheld(state)).await;
    }
}

/// Deploys a network to a board, as a user's program does.
pub(crate) fn deploy(board: &Board) {
    let mut stream = TcpStream::connect(board.data()).expect("it listens");
    stream.set_read_timeout(Some(TIMEOUT)).expect("a limit");
    let message = [0x7000_u32, 4, 0, 0, 0, 42].map(u32::to_le_bytes).concat();
    stream.write_all(&message).expect("sent");
    stream.read_exact(&mut [0; 16]).expect("answered");
    assert!(board.is_deployed());
}

/// Admits a pod with one container that requests one of a resource.
pub(crate) async fn admit(kubelet: &Kubelet, name: &str, resource: &str) -> Admission {
    kubelet
        .admit(pod_with(name, resource, 1))
        .await
        .unwrap_or_else(|rejection| panic!("{rejection}"))
}

/// Starts a pod's container.
pub(crate) async fn start(
    kubelet: &Kubelet,
    name: &str,
) -> Result<RunContainerOptions, StartError> {
    let uid = format!("{name}-uid");
    within_timeout(
        "it starts or fails with a reason",
        Box::pin(kubelet.start_container(&uid, "main")),
    )
    .await
}

/// Starts a pod's container, repeated until it succeeds: a kubelet tries again.
pub(crate) async fn start_with_retries(kubelet: &Kubelet, name: &str) {
    until("the container starts", async || start(kubelet, name).await).await;
}

/// Deletes a pod, and makes the kubelet notice it by another Allocate of any resource.
pub(crate) async fn delete(kubelet: &Kubelet, name: &str) {
    kubelet.delete_pod(&format!("{name}-uid")).await;
    admit(kubelet, &format!("after-{name}"), SPARES).await;
}

fn id_of(board: &Board) -> String {
    format!("darwin3-{}", board.control().to_string().replace(':', "-"))
}

fn spare_rule() -> SourceRule {
    let find = DiscoveryRule::Files("/etc/spare".into());
    let rule = SourceRule::new("spare".parse().expect("a name"), find);
    let give = EditTemplates {
        env: [("SPARE".to_owned(), "{name}".to_owned())].into(),
        ..EditTemplates::default()
    };
    SourceRule { resource: SPARES.parse().ok(), give, ..rule }
}
