//! Darwin3 boards on the network: a container gets their addresses, and health checks do not disturb them.

use std::{
    future::ready,
    net::{Ipv4Addr, SocketAddr},
};

use windlass_kubelet_sim::Kubelet;
use windlass_machine::{Board, BoardAddresses, BoardEvent, BoardFault};
use windlass_testkit::{Node, pod_with as pod, until, until_allocatable};

use crate::devices::world::{node, policy};

const DARWIN3: &str = "zj.com/darwin3";

/// An address of this machine that no other test listens on: boards have fixed ports.
fn address(number: u8) -> Ipv4Addr {
    let [.., high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, high | 0x80, low, number)
}

fn board(host: Ipv4Addr) -> Board {
    let socket = |port| SocketAddr::from((host, port));
    Board::start(&BoardAddresses { control: socket(6001), data: socket(6000) }).expect("a board")
}

/// The boards of the profile, at these addresses.
fn entry(boards: &[Ipv4Addr]) -> String {
    let boards = boards.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    format!("{{profile: darwin3-network, find: {{endpoints: [{boards}]}}}}")
}

/// A gateway that reaches the boards.
fn gateway(boards: &[Ipv4Addr]) -> Node {
    node("", &format!("sources: [{}]", entry(boards)))
}

async fn until_counts(kubelet: &Kubelet, expected: (usize, usize)) {
    windlass_testkit::until_counts(kubelet, DARWIN3, expected).await;
}

#[tokio::test]
async fn a_container_gets_the_addresses_of_its_boards() {
    let hosts = [address(1), address(2)];
    let _boards = hosts.map(board);
    let world = gateway(&hosts);
    let (kubelet, _agent) = (world.start_kubelet(), world.start_agent());
    until_allocatable(&kubelet, DARWIN3, 2).await;
    let admission = kubelet.admit(pod("p", DARWIN3, 2)).await.expect("admitted");
    let envs = &admission.allocation("main", DARWIN3).expect("allocated").run_options.envs;
    let [one, two] = hosts;
    assert_eq!(envs["DARWIN3_ENDPOINTS"], format!("{one}:6000,{two}:6000"));
    assert_eq!(envs["DARWIN3_CONTROL"], format!("http://{one}:6001,http://{two}:6001"));
    assert!(kubelet.admit(pod("q", DARWIN3, 1)).await.is_err(), "a board belongs to one container");
}

#[tokio::test]
async fn a_board_that_fails_affects_no_other_and_recovers() {
    let hosts = [address(3), address(4)];
    let [failing, _other] = hosts.map(board);
    let world = gateway(&hosts);
    let (kubelet, _agent) = (world.start_kubelet(), world.start_agent());
    until_counts(&kubelet, (2, 2)).await;
    failing.inject(BoardFault::Refuses);
    until_counts(&kubelet, (2, 1)).await;
    failing.inject(BoardFault::None);
    until_counts(&kubelet, (2, 2)).await;
}

#[tokio::test]
async fn probes_use_only_the_control_port() {
    let host = address(5);
    let board = board(host);
    let world = gateway(&[host]);
    let (kubelet, agent) = (world.start_kubelet(), world.start_agent());
    until_counts(&kubelet, (1, 1)).await;
    board.inject(BoardFault::Refuses);
    until_counts(&kubelet, (1, 0)).await;
    board.inject(BoardFault::None);
    until_counts(&kubelet, (1, 1)).await;
    drop(agent);
    let is_probe = |event: &BoardEvent| match event {
        BoardEvent::Get(path) | BoardEvent::Refused(path) => path.contains("/last_running_time"),
        _ => false,
    };
    let events = board.take_events();
    assert!(events.len() > 1 && events.iter().all(is_probe), "{events:?}");
    assert!(!board.is_wedged());
}

#[tokio::test]
async fn the_probe_that_the_profile_avoids_would_wedge_the_board() {
    let host = address(6);
    let board = board(host);
    let wedging_probe =
        entry(&[host]).replace("find:", &format!("probe: {{tcp: \"{host}:6000\"}}, find:"));
    let world = node("", &format!("sources: [{wedging_probe}]"));
    let agent = world.start_agent();
    agent.until(|_| board.is_wedged()).await;
}

/// Waits until the board has these events, and no others but probes.
async fn until_events(board: &Board, expected: &[BoardEvent]) {
    let mut collected = Vec::new();
    let new_events = || {
        let events = board.take_events().into_iter();
        collected.extend(events.filter(|event| !matches!(event, BoardEvent::Get(_))));
        ready(if collected.len() < expected.len() {
            Err(collected.clone())
        } else {
            Ok(collected.clone())
        })
    };
    assert_eq!(until("the events of the board", new_events).await, expected);
}

#[tokio::test]
async fn a_board_is_reset_and_set_to_its_frequency_before_a_container_and_reset_after_it() {
    use BoardEvent::{Frequency, Reset};
    let hosts = [address(9), address(10)];
    let [board, _other] = hosts.map(board);
    let world = gateway(&hosts);
    let (kubelet, _agent) = (world.start_kubelet(), world.start_agent());
    until_counts(&kubelet, (2, 2)).await;
    kubelet.admit(pod("p", DARWIN3, 1)).await.expect("admitted");
    kubelet.start_container("p-uid", "main").await.expect("started");
    // The board's history is unknown, so the steps of a release come first.
    until_events(&board, &[Reset, Reset, Frequency(333)]).await;
    // The agent accepts an empty list of pods only after a long delay.
    kubelet.admit(pod("idle", DARWIN3, 1)).await.expect("admitted");
    kubelet.delete_pod("p-uid").await;
    until_events(&board, &[Reset]).await;
    until_counts(&kubelet, (2, 2)).await;
    assert!(!board.is_wedged());
}

#[tokio::test]
async fn boards_are_added_with_the_configuration() {
    let hosts = [address(7), address(8)];
    let _boards = hosts.map(board);
    let world = gateway(&hosts[..1]);
    let (kubelet, agent) = (world.start_kubelet(), world.start_agent());
    until_counts(&kubelet, (1, 1)).await;
    agent.set_policy(policy(&format!("sources: [{}]", entry(&hosts))));
    until_counts(&kubelet, (2, 2)).await;
}
