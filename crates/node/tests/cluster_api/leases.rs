//! Leases of devices that several nodes reach, against an API server that checks resource versions.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use windlass_cluster::leases::{self, LeaseState, LeaseStates};
use windlass_config::{DiscoveryRule, Policy, SourceRule};
use windlass_core::{
    device::{Device, DeviceKind, SourceName},
    health::{HealthTracker, Observation, Reason},
};
use windlass_host::clock::Clock;
use windlass_resources::NodeState;
use windlass_testkit::until_value;

use crate::cluster_api::{
    api_server::ApiServer,
    objects::{Cluster, Refusal, status},
};

/// A gateway that has the boards in its configuration.
struct Gateway {
    state: watch::Sender<Arc<NodeState>>,
    states: watch::Receiver<Arc<LeaseStates>>,
    stop: CancellationToken,
}

// === impl Gateway ===

impl Gateway {
    fn start(server: &mut ApiServer, node: &str, boards: &[&str]) -> Self {
        let (state, state_receiver) = watch::channel(Arc::new(with_boards(boards)));
        let (clock, stop) = (Clock::starting_at(Timestamp::now()), server.stop.child_token());
        let client = server.client_on(node, None);
        let (states, run) =
            leases::maintain(client, state_receiver, clock, Arc::new(Notify::new()), stop.clone());
        server.tasks.spawn(run);
        Self { state, states, stop }
    }

    async fn until_state(&mut self, board: &str, expected: &LeaseState) {
        let is_expected = |states: &Arc<LeaseStates>| states.get(board) == Some(expected);
        until_value(&format!("{board} is {expected:?}"), &self.states, is_expected).await;
    }
}

fn source() -> SourceName {
    "darwin3".parse().expect("valid")
}

fn with_boards(boards: &[&str]) -> NodeState {
    let rule = SourceRule {
        lease: true,
        ..SourceRule::new(source(), DiscoveryRule::Endpoints(Vec::new()))
    };
    let policy = Policy { sources: vec![rule], ..Policy::default() };
    let mut state = NodeState { policy: Arc::new(policy), ..NodeState::default() };
    state.inventory.devices = boards
        .iter()
        .map(|id| {
            let id = id.parse().expect("valid");
            Device::new(id, DeviceKind::Other, source(), Timestamp::UNIX_EPOCH)
        })
        .collect();
    state
}

/// The state after the boards were removed from the configuration.
fn vanished(mut state: NodeState) -> NodeState {
    let mut tracker = HealthTracker::new(Duration::ZERO, Timestamp::UNIX_EPOCH);
    let vanished = Observation::Failed(Reason::Vanished, String::new());
    tracker.observe(&vanished, Timestamp::UNIX_EPOCH);
    for device in &mut state.inventory.devices {
        device.health = tracker.health().clone();
    }
    state
}

fn held_by(node: &str) -> LeaseState {
    LeaseState::HeldBy(node.to_owned())
}

/// API server, and gateway `gw1`, which holds the lease of `board-1`.
async fn start_holder() -> (ApiServer, Gateway) {
    let mut server = ApiServer::start();
    let mut gateway = Gateway::start(&mut server, "gw1", &["board-1"]);
    gateway.until_state("board-1", &LeaseState::Held).await;
    (server, gateway)
}

fn holder(cluster: &Cluster, lease: &str) -> Option<String> {
    cluster.leases.get(lease)?["spec"]["holderIdentity"].as_str().map(str::to_owned)
}

#[tokio::test]
async fn one_of_two_gateways_gets_each_board_and_the_other_names_the_holder() {
    let (mut server, _first) = start_holder().await;
    let mut second = Gateway::start(&mut server, "gw2", &["board-1", "Board_2"]);
    second.until_state("board-1", &held_by("gw1")).await;
    assert_eq!(held_by("gw1").obstacle().as_deref(), Some("leased by node gw1"));
    second.until_state("Board_2", &LeaseState::Held).await;
    let cluster = server.cluster.borrow().clone();
    assert_eq!(holder(&cluster, "gpu/windlass-board-1").as_deref(), Some("gw1"));
    assert_eq!(holder(&cluster, "gpu/windlass-board-2").as_deref(), Some("gw2"));
    server.stop().await;
}

#[tokio::test]
async fn a_gateway_that_dies_is_replaced_once_its_lease_has_expired() {
    let (mut server, first) = start_holder().await;
    let mut second = Gateway::start(&mut server, "gw2", &["board-1"]);
    second.until_state("board-1", &held_by("gw1")).await;
    first.stop.cancel();
    second.until_state("board-1", &LeaseState::Held).await;
    let mut restarted = Gateway::start(&mut server, "gw1", &["board-1"]);
    restarted.until_state("board-1", &held_by("gw2")).await;
    let cluster = server.cluster.borrow().clone();
    let lease = &cluster.leases["gpu/windlass-board-1"];
    assert_eq!(lease["spec"]["leaseTransitions"], 2, "{lease}");
    server.stop().await;
}

#[tokio::test]
async fn a_board_that_one_gateway_no_longer_has_is_taken_over_by_the_other() {
    let (mut server, first) = start_holder().await;
    let mut second = Gateway::start(&mut server, "gw2", &["board-1"]);
    second.until_state("board-1", &held_by("gw1")).await;
    first.state.send_replace(Arc::new(vanished(with_boards(&["board-1"]))));
    second.until_state("board-1", &LeaseState::Held).await;
    assert!(first.states.borrow().is_empty(), "it holds no lease of a vanished board");
    server.stop().await;
}

#[tokio::test]
async fn a_gateway_that_cannot_renew_withholds_the_board_before_another_may_take_over() {
    let (mut server, mut gateway) = start_holder().await;
    server.stop_serving().await;
    gateway.until_state("board-1", &LeaseState::Overdue).await;
    server.start_serving();
    gateway.until_state("board-1", &LeaseState::Held).await;
    server.stop().await;
}

#[tokio::test]
async fn a_lease_that_expired_while_the_gateway_was_stopped_is_late_until_it_is_renewed() {
    let (server, mut gateway) = start_holder().await;
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(600)).await;
    gateway.until_state("board-1", &LeaseState::Overdue).await;
    tokio::time::resume();
    gateway.until_state("board-1", &LeaseState::Held).await;
    server.stop().await;
}

#[tokio::test]
async fn a_refused_lease_affects_no_other() {
    let mut server = ApiServer::start();
    let status = status(403, "Forbidden", "no");
    server.refuse(Refusal { method: "GET", path: "windlass-a", times: usize::MAX, status });
    let mut gateway = Gateway::start(&mut server, "gw1", &["a", "b"]);
    gateway.until_state("b", &LeaseState::Held).await;
    gateway.until_state("a", &LeaseState::Unknown).await;
    server.stop().await;
}

#[tokio::test]
async fn boards_are_added_and_removed_and_without_any_no_request_is_sent() {
    let mut server = ApiServer::start();
    let mut gateway = Gateway::start(&mut server, "gw1", &[]);
    gateway.state.send_replace(Arc::new(with_boards(&["a"])));
    gateway.until_state("a", &LeaseState::Held).await;
    let first = server.cluster.borrow().log[0].clone();
    assert!(first.path.contains("windlass-a"), "no earlier request: {first:?}");
    gateway.state.send_replace(Arc::new(with_boards(&["b"])));
    gateway.until_state("b", &LeaseState::Held).await;
    assert!(!gateway.states.borrow().contains_key("a"), "its lease expires");
    server.stop().await;
}
