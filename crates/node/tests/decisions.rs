//! Full GPUs: a pod gets those that the cluster half decided, or its placement is corrected.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod as PodObject;
use serde_json::{Value, json};
use windlass_config::{LabelPolicy, Policy};
use windlass_testkit::{GPU, pod_with, until, until_allocatable};

use crate::shares::World;

/// A node whose agent knows these pods, the oldest first, each with the positions of its decided GPUs.
async fn world(pods: &[(&str, &[usize])]) -> World {
    let labels = LabelPolicy { devices: true, ..LabelPolicy::default() };
    let mut world = World::with(Policy { labels, ..Policy::default() }, 8).await;
    let gpus = gpu_ids(&world);
    for (second, (name, decided)) in pods.iter().enumerate() {
        let placement = placement(&gpus, decided);
        let metadata = json!({
            "uid": format!("{name}-uid"), "annotations": {"windlass.dev/placement": placement},
            "creationTimestamp": format!("2026-01-01T00:00:0{second}Z"),
        });
        world.put(&pod_with(name, GPU, decided.len() as u64), &metadata);
    }
    world.agent.stop().await;
    world.api.objects().clear_log();
    world.agent = world.node.start_agent();
    until_allocatable(&world.kubelet, GPU, 8).await;
    until("pods are watched", async || {
        let log = world.api.objects().requests();
        let is_watch = |path: &str, query: &BTreeMap<String, String>| {
            path == "/api/v1/pods" && query.contains_key("watch")
        };
        let found = log.iter().find(|request| is_watch(&request.path, &request.query));
        found.map(drop).ok_or(log.len())
    })
    .await;
    world
}

fn gpu_ids(world: &World) -> Vec<String> {
    let state = world.agent.state.borrow();
    state
        .inventory
        .devices
        .iter()
        .filter(|it| it.family().has_nvml)
        .map(|it| it.id.to_string())
        .collect()
}

fn placement(gpus: &[String], decided: &[usize]) -> String {
    let devices: Vec<_> = decided.iter().map(|position| json!({"id": gpus[*position]})).collect();
    json!({"devices": devices}).to_string()
}

/// Has the kubelet admit a pod. Returns the positions of its GPUs.
async fn admit(world: &World, name: &str, count: u64) -> Vec<usize> {
    let admission = world.kubelet.admit(pod_with(name, GPU, count)).await.expect("admitted");
    let gpus = gpu_ids(world);
    let ids = admission.containers[0].resources[GPU].ids();
    let position = |id: &String| gpus.iter().position(|it| it == id).expect("a GPU");
    let mut positions: Vec<_> = ids.iter().map(position).collect();
    positions.sort_unstable();
    positions
}

/// The agent's correction, as positions.
async fn corrected_placement(world: &World, name: &str) -> Vec<usize> {
    let placement: Value = serde_json::from_str(&world.until_corrected(name).await).expect("JSON");
    let gpus = gpu_ids(world);
    let devices = placement["devices"].as_array().expect("devices").iter();
    let mut positions: Vec<_> =
        devices.map(|it| gpus.iter().position(|id| it["id"] == **id).expect("a GPU")).collect();
    positions.sort_unstable();
    positions
}

fn is_corrected(world: &World, name: &str) -> bool {
    let pod = world.api.objects().get::<PodObject>("default", name).expect("a Pod");
    pod.metadata
        .annotations
        .is_some_and(|annotations| annotations.contains_key("windlass.dev/placed"))
}

#[tokio::test]
async fn pods_get_the_gpus_that_were_decided_for_them() {
    let world = world(&[("p", &[1, 6]), ("q", &[3, 4]), ("r", &[0, 2, 7])]).await;
    assert_eq!(admit(&world, "p", 2).await, [1, 6]);
    assert_eq!(admit(&world, "r", 3).await, [0, 2, 7]);
    assert_eq!(admit(&world, "q", 2).await, [3, 4]);
    let last = admit(&world, "undecided", 1).await;
    assert_eq!(last, [5]);
    assert!(["p", "q", "r"].into_iter().all(|name| !is_corrected(&world, name)));
    world.assert_permissions();
    world.agent.stop().await;
}

#[tokio::test]
async fn equal_pods_in_another_order_swap_their_gpus_and_their_placements_are_corrected() {
    let world = world(&[("p", &[1, 6]), ("q", &[3, 4])]).await;
    assert_eq!(
        admit(&world, "q", 2).await,
        [1, 6],
        "the kubelet does not name the pod in its request"
    );
    assert_eq!(admit(&world, "p", 2).await, [3, 4]);
    assert_eq!(corrected_placement(&world, "q").await, [1, 6]);
    assert_eq!(corrected_placement(&world, "p").await, [3, 4]);
    world.agent.stop().await;
}

#[tokio::test]
async fn a_pod_whose_gpus_are_unavailable_gets_others_and_its_placement_is_corrected() {
    let world = world(&[("p", &[2])]).await;
    // This request differs from that of the pending pod.
    let positions = admit(&world, "undecided", 8).await;
    assert_eq!(positions.len(), 8);
    world.kubelet.delete_pod("undecided-uid").await;
    until_allocatable(&world.kubelet, GPU, 8).await;
    world.node.inject("lost@2");
    until_allocatable(&world.kubelet, GPU, 7).await;
    let other = admit(&world, "p", 1).await;
    assert_ne!(other, [2]);
    assert_eq!(corrected_placement(&world, "p").await, other);
    world.agent.stop().await;
}
