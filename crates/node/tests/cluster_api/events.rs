//! Events about a device's health: their content, their number, and delivery through failures of the API server.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::{sync::watch, time::Instant};
use windlass_cluster::events;
use windlass_core::{
    device::{Device, DeviceKind, SourceName},
    health::{Failure, Health, HealthState, Reason},
    inventory::Inventory,
};
use windlass_resources::NodeState;

use crate::cluster_api::{
    api_server::ApiServer,
    objects::{Cluster, NODE, Refusal, status},
};

/// Unix time of second 0 in these tests.
const START: i64 = 1_750_000_000;

/// The node's devices, as the agent sees them.
struct Node {
    inventory: Inventory,
    state: watch::Sender<Arc<NodeState>>,
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(START + second).expect("a time of this century")
}

fn healthy(second: i64) -> Health {
    Health { state: HealthState::Healthy, since: at(second), failures: Vec::new() }
}

fn failed(second: i64, reason: Reason, detail: &str) -> Health {
    let (detail, first, last) = (detail.to_owned(), at(second), at(second));
    let failures = vec![Failure { reason, detail, first, last, count: 1 }];
    Health { state: HealthState::Unhealthy, since: at(second), failures }
}

fn off_the_bus(second: i64) -> Health {
    failed(second, Reason::Xid(79), "GPU has fallen off the bus")
}

fn device(kind: DeviceKind, index: u32, id: &str) -> Device {
    let id = id.parse().expect("a good id");
    Device { index, health: healthy(0), ..Device::new(id, kind, SourceName::NVIDIA, at(0)) }
}

/// The state of a node with one GPU, failed or not.
pub(crate) fn with_failure(reason: Option<Reason>, second: i64) -> Arc<NodeState> {
    let health = match reason {
        Some(reason) => failed(second, reason, "injected by the test"),
        None => healthy(second),
    };
    let gpu = Device { health, ..device(DeviceKind::Gpu, 0, "GPU-0") };
    let mut state = NodeState::default();
    state.inventory.devices.push(gpu);
    Arc::new(state)
}

// === impl Node ===

impl Node {
    /// A node with healthy GPUs from `GPU-0` on, whose events are sent to the server.
    fn run(server: &mut ApiServer, gpus: u32) -> Self {
        let device = |index| device(DeviceKind::Gpu, index, &format!("GPU-{index}"));
        let devices = (0..gpus).map(device).collect();
        let inventory = Inventory { devices, ..Inventory::default() };
        let (state, receiver) = watch::channel(Arc::default());
        let node = Self { inventory, state };
        node.publish();
        server.tasks.spawn(events::run(receiver, server.client(), server.stop.clone()));
        node
    }

    fn publish(&self) {
        let state = NodeState { inventory: self.inventory.clone(), ..NodeState::default() };
        self.state.send_replace(Arc::new(state));
    }

    fn set_health(&mut self, position: usize, health: Health) {
        self.inventory.devices[position].health = health;
        self.publish();
    }
}

/// The notes of all events, in the order of the reported changes.
fn notes(cluster: &Cluster) -> Vec<String> {
    let mut events: Vec<_> = cluster.events.values().collect();
    events.sort_by_key(|event| (event["eventTime"].to_string(), event["note"].to_string()));
    let note = |event: &&Value| event["note"].as_str().expect("a note").to_owned();
    events.iter().map(note).collect()
}

/// Number of attempts to send an event, successful or not.
fn attempts(cluster: &Cluster) -> usize {
    cluster.requests("POST", "/events").len() + cluster.requests("PATCH", "/events").len()
}

fn counts(cluster: &Cluster) -> Vec<u64> {
    let count = |event: &Value| event["series"]["count"].as_u64().unwrap_or(1);
    let mut counts: Vec<_> = cluster.events.values().map(count).collect();
    counts.sort_unstable();
    counts
}

#[tokio::test]
async fn a_failure_is_a_warning_on_the_node_and_its_recovery_an_event() {
    let mut server = ApiServer::start();
    let mut node = Node::run(&mut server, 2);
    node.set_health(1, off_the_bus(5));
    let cluster = server.until(|cluster| cluster.events.len() == 1).await;
    let mut event = cluster.events.values().next().expect("one").clone();
    let name = event["metadata"]["name"].take();
    assert!(name.as_str().is_some_and(|name| name.starts_with("windlass-")), "{name}");
    let expected = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": {"name": null, "namespace": "default"},
        "type": "Warning", "reason": "DeviceUnhealthy", "action": "Withhold",
        "note": "gpu GPU-1 is Unhealthy: XID 79, GPU has fallen off the bus; restart the machine",
        "eventTime": event["eventTime"],
        "regarding": {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": NODE},
        "reportingController": "windlass.dev/node", "reportingInstance": NODE,
    });
    assert_eq!(event, expected);
    assert_eq!(event["eventTime"], "2025-06-15T15:06:45.000000Z");

    node.set_health(1, healthy(65));
    let cluster = server.until(|cluster| cluster.events.len() == 2).await;
    let recovered = "gpu GPU-1 is Healthy again, was Unhealthy: XID 79, GPU has fallen off the bus; restart the machine";
    assert_eq!(notes(&cluster)[1], recovered);
    let is_normal =
        |event: &Value| event["type"] == "Normal" && event["reason"] == "DeviceRecovered";
    assert!(cluster.events.values().any(is_normal));
    server.stop().await;
}

#[tokio::test]
async fn healthy_and_unprobed_devices_have_no_events() {
    let mut server = ApiServer::start();
    let mut node = Node::run(&mut server, 3);
    node.set_health(0, Health::unknown(at(0)));
    node.set_health(0, healthy(1));
    // The last device has an event; the first two, before it in order, have none.
    node.set_health(2, off_the_bus(2));
    let cluster = server.until(|cluster| attempts(cluster) == 1).await;
    assert_eq!(
        notes(&cluster),
        ["gpu GPU-2 is Unhealthy: XID 79, GPU has fallen off the bus; restart the machine"]
    );
    server.stop().await;
}

#[tokio::test]
async fn a_second_failure_of_an_unhealthy_device_has_an_event() {
    let mut server = ApiServer::start();
    let mut node = Node::run(&mut server, 1);
    node.set_health(0, failed(1, Reason::Xid(48), "double-bit ECC error"));
    server.until(|cluster| cluster.events.len() == 1).await;
    node.set_health(0, off_the_bus(2));
    server.until(|cluster| cluster.events.len() == 2).await;
    server.stop().await;
}

#[tokio::test]
async fn a_repeated_event_becomes_a_series() {
    let mut server = ApiServer::start();
    let mut node = Node::run(&mut server, 1);
    for round in 0..3 {
        node.set_health(0, off_the_bus(round * 120));
        let before = usize::try_from(round * 2).expect("small");
        server.until(|cluster| attempts(cluster) == before + 1).await;
        node.set_health(0, healthy(round * 120 + 60));
        server.until(|cluster| attempts(cluster) == before + 2).await;
    }
    let cluster = server.until(|cluster| counts(cluster) == [3, 3]).await;
    let last = &cluster.requests("PATCH", "/events").last().expect("the last").body;
    let time = "2025-06-15T15:11:40.000000Z";
    assert_eq!(*last, json!({"series": {"count": 3, "lastObservedTime": time}}));
    server.stop().await;
}

#[tokio::test]
async fn an_expired_event_is_created_again() {
    let mut server = ApiServer::start();
    let mut node = Node::run(&mut server, 1);
    node.set_health(0, off_the_bus(1));
    server.until(|cluster| cluster.events.len() == 1).await;
    node.set_health(0, healthy(60));
    server.until(|cluster| cluster.events.len() == 2).await;
    server.cluster.send_modify(|cluster| cluster.events.clear());
    node.set_health(0, off_the_bus(120));
    let cluster = server.until(|cluster| cluster.events.len() == 1).await;
    assert_eq!(counts(&cluster), [1]);
    server.stop().await;
}

#[tokio::test]
async fn a_fault_of_a_full_gpu_has_no_event_for_each_of_its_parts() {
    let mut server = ApiServer::start();
    let mut node = Node::run(&mut server, 1);
    let gpu_id = node.inventory.devices[0].id.clone();
    for part in 0..7 {
        let instance = device(DeviceKind::Mig, 0, &format!("MIG-{part}"));
        let (parent, part) = (Some(gpu_id.clone()), Some(part));
        node.inventory.devices.push(Device { parent, part, ..instance });
    }
    for device in &mut node.inventory.devices {
        device.health = off_the_bus(1);
    }
    node.publish();
    server.until(|cluster| attempts(cluster) == 1).await;
    for device in &mut node.inventory.devices {
        device.health = healthy(60);
    }
    // A failure of a single GPU has its own event.
    node.set_health(3, failed(61, Reason::ProbeFailed, "unknown error"));
    let cluster = server.until(|cluster| attempts(cluster) == 3).await;
    assert_eq!(
        notes(&cluster),
        [
            "gpu GPU-0 is Unhealthy: XID 79, GPU has fallen off the bus; restart the machine",
            "gpu GPU-0 is Healthy again, was Unhealthy: XID 79, GPU has fallen off the bus; restart the machine",
            "mig MIG-2 is Unhealthy: probe failed, unknown error",
        ]
    );
    server.stop().await;
}

#[tokio::test]
async fn events_of_many_faults_are_sent_at_a_limited_rate() {
    let mut server = ApiServer::start();
    let mut node = Node::run(&mut server, 40);
    for device in &mut node.inventory.devices {
        device.health = off_the_bus(1);
    }
    node.publish();
    let start = Instant::now();
    server.until(|cluster| attempts(cluster) == 32).await;
    assert!(start.elapsed() < Duration::from_secs(9), "the first are sent at once");
    // From here on, time passes only while every task waits.
    tokio::time::pause();
    server.until(|cluster| attempts(cluster) == 34).await;
    assert!(start.elapsed() >= Duration::from_secs(20), "{:?}", start.elapsed());
    server.stop().await;
}

#[tokio::test]
async fn a_delayed_event_has_the_latest_state() {
    let mut server = ApiServer::start();
    let busy = status(503, "ServiceUnavailable", "apiserver not ready");
    server.refuse(Refusal { method: "POST", path: "/events", times: usize::MAX, status: busy });
    let mut node = Node::run(&mut server, 3);
    node.set_health(0, off_the_bus(1));
    server.until(|cluster| attempts(cluster) > 0).await;
    node.set_health(0, healthy(60));
    node.set_health(2, off_the_bus(61));
    let mentions_gpu_2 = |cluster: &Cluster| {
        cluster.log.last().is_some_and(|last| {
            last.body["note"].as_str().is_some_and(|note| note.contains("GPU-2"))
        })
    };
    server.until(mentions_gpu_2).await;
    server.cluster.send_modify(|cluster| cluster.refusals.clear());
    let cluster = server.until(|cluster| !cluster.events.is_empty()).await;
    assert_eq!(
        notes(&cluster),
        ["gpu GPU-2 is Unhealthy: XID 79, GPU has fallen off the bus; restart the machine"]
    );
    server.stop().await;
}

#[tokio::test]
async fn events_are_sent_once_the_api_server_starts() {
    let mut server = ApiServer::unstarted();
    let mut node = Node::run(&mut server, 1);
    node.set_health(0, off_the_bus(1));
    tokio::task::yield_now().await;
    server.start_serving();
    server.until(|cluster| cluster.events.len() == 1).await;
    server.stop().await;
}

#[tokio::test]
async fn a_refusal_is_tried_again_and_the_event_is_written_once() {
    let mut server = ApiServer::start();
    let forbidden = status(403, "Forbidden", "events.events.k8s.io is forbidden");
    server.refuse(Refusal { method: "POST", path: "/events", times: 3, status: forbidden });
    let mut node = Node::run(&mut server, 1);
    node.set_health(0, off_the_bus(1));
    let cluster = server.until(|cluster| cluster.events.len() == 1).await;
    assert_eq!(attempts(&cluster), 4);
    let names: std::collections::BTreeSet<_> = cluster
        .requests("POST", "/events")
        .iter()
        .map(|request| request.body["metadata"]["name"].to_string())
        .collect();
    assert_eq!(names.len(), 1, "with other names each attempt would create an event");
    server.stop().await;
}

#[tokio::test]
async fn an_event_that_is_always_refused_delays_no_other() {
    let mut server = ApiServer::start();
    let invalid = status(422, "Invalid", "note: Invalid value");
    server.refuse(Refusal { method: "POST", path: "/events", times: 1, status: invalid });
    let mut node = Node::run(&mut server, 2);
    node.set_health(0, off_the_bus(1));
    node.set_health(1, off_the_bus(2));
    let cluster = server.until(|cluster| cluster.events.len() == 1).await;
    assert_eq!(
        notes(&cluster),
        ["gpu GPU-1 is Unhealthy: XID 79, GPU has fallen off the bus; restart the machine"]
    );
    server.stop().await;
}

#[tokio::test]
async fn the_event_of_a_simulated_device_names_the_simulation() {
    let mut server = ApiServer::start();
    let mut node = Node::run(&mut server, 1);
    node.inventory.simulated = Some("dgx-h100".to_owned());
    node.set_health(0, off_the_bus(1));
    let cluster = server.until(|cluster| cluster.events.len() == 1).await;
    assert!(notes(&cluster)[0].starts_with("gpu GPU-0 (simulated dgx-h100) is Unhealthy"));
    server.stop().await;
}
