//! Page of an agent on a simulated machine, over real HTTP.

use std::time::Duration;

use serde_json::Value;
use windlass_config::Disclosed;
use windlass_testkit::{RunningAgent, pod_with};

use super::{
    admin::{get, get_until, node_with_slow_probes},
    sharing::{SHARED, first_gpu_by_memory},
};
use crate::agent::world::pod;

async fn state(agent: &RunningAgent, path: &str, condition: impl Fn(&Value) -> bool) -> Value {
    let parse = |body: &str| serde_json::from_str::<Value>(body).ok();
    let is_met = |body: &str| parse(body).is_some_and(|state| condition(&state));
    let answer = get_until(agent, path, |answer| is_met(&answer.body)).await;
    parse(&answer.body).expect("checked above")
}

fn devices(state: &Value) -> impl Iterator<Item = &Value> {
    state["nodes"][0]["devices"].as_array().into_iter().flatten()
}

fn holders(state: &Value) -> Vec<&Value> {
    devices(state).filter_map(|device| device["holders"].as_array()).flatten().collect()
}

#[tokio::test]
async fn the_page_shows_devices_links_holders_and_events() {
    let mut world = node_with_slow_probes("dgx-h100");
    world.config.disclose = [Disclosed::Pods].into();
    // Longer than the test.
    world.config.policy.health.quiet_period = Duration::from_secs(600);
    let (kubelet, agent) = world.start_ready(8).await;
    let is_complete = |state: &Value| {
        let measured = devices(state).filter(|device| device["powerWatts"].is_number());
        measured.count() == 8
    };
    let first = state(&agent, "/page/state", is_complete).await;
    assert_eq!((&first["source"], &first["simulated"]), (&"node".into(), &true.into()));
    assert_eq!(first["summary"]["gpus"], 8);
    assert_eq!(first["summary"]["freeGpus"], 8);
    let gpu = devices(&first).find(|device| device["kind"] == "gpu").expect("a GPU");
    assert_eq!(gpu["product"], "NVIDIA H100 80GB HBM3");
    assert_eq!((&gpu["health"], &gpu["idle"]), (&"healthy".into(), &1.0.into()));
    assert_eq!(gpu["resource"], "nvidia.com/gpu");
    let links = first["nodes"][0]["links"].as_array().expect("links");
    let nvlinks = links.iter().filter(|link| link["kind"] == "NV18").count();
    assert_eq!(nvlinks, 8 * 7 / 2, "each pair of GPUs");

    kubelet.admit(pod("trainer", 2)).await.expect("admitted");
    let held = state(&agent, "/page/state", |state| holders(state).len() == 2).await;
    assert!(holders(&held).iter().all(|holder| holder["pod"] == "default/trainer"));
    assert_eq!(held["summary"]["freeGpus"], 6);

    world.inject("xid:79@3");
    let changes_path =
        format!("/page/state?after={}", first["revision"].as_str().expect("a revision"));
    let is_fault = |event: &&Value| event["kind"] == "fault";
    let faults =
        |state: &Value| state["history"].as_array().into_iter().flatten().filter(is_fault).count();
    let changes = state(&agent, &changes_path, |state| faults(state) == 1).await;
    assert_eq!(changes["complete"], false);
    let events = changes["history"].as_array().expect("events");
    let fault = events.iter().find(is_fault).expect("counted above");
    assert!(fault["text"].as_str().expect("a text").starts_with("XID 79"), "{fault}");
    let placed = events.iter().filter(|event| event["kind"] == "placed").count();
    assert_eq!(placed, 2, "{events:?}");
    let failed = devices(&changes).find(|device| device["health"] == "unhealthy");
    assert_eq!(failed.expect("one")["action"], "restart the machine");
}

#[tokio::test]
async fn a_pod_that_no_api_server_names_is_one_holder() {
    let mut world = node_with_slow_probes("dgx-h100");
    world.config.disclose = [Disclosed::Pods].into();
    world.config.policy.resources = first_gpu_by_memory(10);
    let (kubelet, agent) = world.start_ready(7).await;
    kubelet.admit(pod_with("trainer", SHARED, 1)).await.expect("admitted");
    // The watchdog knows the pod by its UID, the kubelet's pod resources by its name.
    let limit = "windlass_share_memory_limit_bytes{";
    get_until(&agent, "/metrics", |answer| answer.body.contains(limit)).await;
    let held = state(&agent, "/page/state", |state| !holders(state).is_empty()).await;
    assert_eq!(holders(&held).len(), 1, "{held}");
}

#[tokio::test]
async fn the_page_names_no_pods_by_default_and_serves_its_files() {
    let world = node_with_slow_probes("dgx-h100");
    let (kubelet, agent) = world.start_ready(8).await;
    kubelet.admit(pod("trainer", 1)).await.expect("admitted");
    let held = state(&agent, "/page/state", |state| holders(state).len() == 1).await;
    assert!(!held.to_string().contains("trainer"), "{held}");

    let page = get(&agent, "/page/").await;
    assert_eq!(page.status(), 200);
    assert!(page.head().contains("content-type: text/html"), "{}", page.head());
    assert!(page.head().contains("content-security-policy: default-src 'none'; "));
    assert_eq!(get(&agent, "/page/nothing.js").await.status(), 404);
    assert!(get(&agent, "/page").await.body.contains("url=page/"), "the slash is added");
}
