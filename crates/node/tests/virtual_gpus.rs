//! Virtual GPUs: `nvidia.com/gpu` as HAMi counts it, with shares and full GPUs that are bound when a container starts.

use serde_json::{Value, json};
use windlass_config::{Policy, ShareResources};
use windlass_core::device::DeviceId;
use windlass_kubelet_sim::{Container, Pod};
use windlass_testkit::{GPU, pod_with, until_allocatable, until_counts};

use crate::shares::{World, share, variables};

const MEMORY: &str = "nvidia.com/gpumem";
const PERCENTAGE: &str = "nvidia.com/gpumem-percentage";
const CORES: &str = "nvidia.com/gpucores";

fn policy() -> Policy {
    let gpus = Some(GPU.parse().expect("a resource"));
    Policy { shares: ShareResources { gpus, ..ShareResources::default() }, ..Policy::default() }
}

async fn world() -> World {
    World::with(policy(), 80).await
}

fn container(name: &str, count: u64, amounts: &[(&str, u64)]) -> Container {
    let container = Container::new(name).limit(GPU, count);
    amounts.iter().fold(container, |it, (resource, amount)| it.limit(*resource, *amount))
}

fn pod(name: &str, count: u64, amounts: &[(&str, u64)]) -> Pod {
    Pod::new(name).container(container("main", count, amounts))
}

fn placement_annotations(gpus: &[&DeviceId]) -> Value {
    let devices: Vec<_> = gpus.iter().map(|id| json!({"id": id})).collect();
    json!({"windlass.dev/placement": json!({"devices": devices}).to_string()})
}

/// GPUs of a container, by its variable.
fn gpus(document: &Value) -> Vec<String> {
    let ids =
        variables(document).into_iter().find_map(|it| it.strip_prefix("WINDLASS_NVIDIA_COM_GPU="));
    ids.expect("GPUs").split(',').map(str::to_owned).collect()
}

/// Starts a container. Returns the GPUs in its first document.
async fn start_container(world: &World, name: &str, container: &str) -> Vec<String> {
    gpus(&world.start(name, container).await.remove(0))
}

#[tokio::test]
async fn a_pod_has_its_share_of_each_decided_gpu_and_full_gpus_are_exclusive() {
    let world = world().await;
    let [gpu_1, gpu_3, gpu_5] = [1, 3, 5].map(|index| &world.gpus[index]);
    let decision = placement_annotations(&[gpu_1, gpu_3]);
    world.admit(pod("a", 2, &[(MEMORY, 3000), (CORES, 30)]), &decision).await;
    let document = world.start("a", "main").await.remove(0);
    assert_eq!(gpus(&document), [gpu_1.as_str(), gpu_3.as_str()]);
    let record = share(&document);
    assert_eq!((&record["memoryMib"], &record["computePercent"]), (&json!(3000), &json!(30)));
    assert_eq!((&record["device"], &record["more"][0]["device"]), (&json!(gpu_1), &json!(gpu_3)));
    let nodes = document["devices"][0]["containerEdits"]["deviceNodes"].as_array();
    let node = |id: &DeviceId| {
        let state = world.agent.state.borrow();
        state
            .inventory
            .get(id.as_str())
            .expect("a GPU")
            .own_nodes()
            .next()
            .expect("a node")
            .path
            .clone()
    };
    for id in [gpu_1, gpu_3] {
        let has_node = |it: &Value| it["path"] == json!(node(id));
        assert!(nodes.expect("nodes").iter().any(has_node), "{nodes:?}");
    }
    // Full GPUs are never those with a share, even against a decision.
    world.admit(pod_with("whole", GPU, 2), &placement_annotations(&[gpu_3, gpu_5])).await;
    let full_gpus = start_container(&world, "whole", "main").await;
    assert!(
        !full_gpus.contains(&gpu_3.to_string()) && full_gpus.contains(&gpu_5.to_string()),
        "{full_gpus:?}"
    );
    let corrected = world.until_corrected("whole").await;
    assert!(!corrected.contains("memoryMib") && corrected.contains(gpu_5.as_str()), "{corrected}");
    // Six GPUs have no share; two of them are taken.
    world.admit(pod_with("five", GPU, 5), &json!({})).await;
    let error = world.kubelet.start_container("five-uid", "main").await.expect_err("not started");
    assert!(error.to_string().contains("of each of 5 GPUs, and too few"), "{error}");
    world.admit(pod("half", 2, &[(PERCENTAGE, 50)]), &decision).await;
    assert_eq!(start_container(&world, "half", "main").await, [gpu_1.as_str(), gpu_3.as_str()]);
    world.admit(pod("more", 1, &[(PERCENTAGE, 50)]), &placement_annotations(&[gpu_1])).await;
    assert_ne!(start_container(&world, "more", "main").await, [gpu_1.as_str()]);
    // All tokens stay: the kubelet does not count the amounts of GPUs.
    until_allocatable(&world.kubelet, GPU, 80).await;
    world.assert_permissions();
    world.agent.stop().await;
}

#[tokio::test]
async fn containers_of_a_pod_have_separate_full_gpus_and_common_shares() {
    let mut world = world().await;
    let full = |name: &str, count| container(name, count, &[]);
    world
        .admit(
            Pod::new("whole")
                .init_container(full("init", 2))
                .container(full("a", 1))
                .container(full("b", 2)),
            &json!({}),
        )
        .await;
    let gpus_of_b = start_container(&world, "whole", "b").await;
    // The next agent knows the GPUs of containers that have not started.
    world.agent.stop().await;
    world.agent = world.node.start_agent();
    world.agent.until(|state| state.shareable.len() == 8).await;
    until_allocatable(&world.kubelet, GPU, 80).await;
    let gpus_of_a = start_container(&world, "whole", "a").await;
    assert_eq!((gpus_of_a.len(), gpus_of_b.len()), (1, 2));
    assert!(!gpus_of_b.contains(&gpus_of_a[0]), "{gpus_of_a:?} {gpus_of_b:?}");
    let gpus_of_init = start_container(&world, "whole", "init").await;
    let used_gpus: Vec<_> = gpus_of_a.iter().chain(&gpus_of_b).collect();
    assert!(
        gpus_of_init.iter().all(|id| used_gpus.contains(&id)),
        "an init container's GPUs are used again"
    );
    let parts = Pod::new("parts")
        .container(container("a", 1, &[(MEMORY, 1000)]))
        .container(container("b", 2, &[(MEMORY, 500)]));
    world.admit(parts, &json!({})).await;
    let (gpus_of_a, gpus_of_b) =
        (start_container(&world, "parts", "a").await, start_container(&world, "parts", "b").await);
    assert_eq!((gpus_of_a.len(), gpus_of_b.len(), &gpus_of_a[0]), (1, 2, &gpus_of_b[0]));
    assert!(gpus_of_b.iter().all(|id| !used_gpus.contains(&id)));
    // Two shares add up to a full GPU.
    let half = |name| container(name, 1, &[(PERCENTAGE, 50), (CORES, 50)]);
    world.admit(Pod::new("halves").container(half("a")).container(half("b")), &json!({})).await;
    let first = start_container(&world, "halves", "a").await;
    assert_eq!(start_container(&world, "halves", "b").await, first);
    let sum = share(&world.start("parts", "a").await.remove(0));
    assert_eq!((&sum["memoryMib"], &sum["more"][0]["memoryMib"]), (&json!(1500), &json!(1500)));
    world.agent.stop().await;
}

#[tokio::test]
async fn without_a_decision_the_pods_selection_of_gpus_counts() {
    let world = world().await;
    let selection = |key: &str, ids: &str| json!({format!("nvidia.com/{key}"): ids});
    let ids = [&world.gpus[2], &world.gpus[6]].map(ToString::to_string);
    world.admit(pod_with("a", GPU, 2), &selection("use-gpuuuid", &ids.join(","))).await;
    let mut first = start_container(&world, "a", "main").await;
    first.sort();
    assert_eq!(first, ids);
    let others: Vec<_> =
        world.gpus.iter().map(ToString::to_string).filter(|id| *id != ids[0]).collect();
    world.admit(pod("b", 1, &[(MEMORY, 1)]), &selection("nouse-gpuuuid", &others.join(","))).await;
    let error = world.kubelet.start_container("b-uid", "main").await.expect_err("not started");
    assert!(error.to_string().contains("no GPU of this node has it"), "{error}");
    world.admit(pod("c", 1, &[(MEMORY, 1)]), &selection("use-gputype", "A100")).await;
    world.kubelet.start_container("c-uid", "main").await.expect_err("not started");
    world.admit(pod("d", 1, &[(MEMORY, 1)]), &selection("use-gputype", "h100")).await;
    start_container(&world, "d", "main").await;
    world.agent.stop().await;
}

#[tokio::test]
async fn full_gpus_from_before_a_change_of_policy_remain_exclusive() {
    let world = World::with(Policy::default(), 8).await;
    let before = world.kubelet.admit(pod_with("before", GPU, 1)).await.expect("admitted");
    let held_gpu = before.containers[0].resources[GPU].ids().first().expect("a GPU").clone();
    world.agent.set_policy(policy());
    // The previous ids stay listed.
    until_counts(&world.kubelet, GPU, (88, 70)).await;
    let held_id: DeviceId = held_gpu.parse().expect("an id");
    world.admit(pod_with("whole", GPU, 8), &json!({})).await;
    let error = world.kubelet.start_container("whole-uid", "main").await.expect_err("not started");
    assert!(error.to_string().contains("of each of 8 GPUs, and too few"), "{error}");
    world.admit(pod("share", 1, &[(PERCENTAGE, 10)]), &placement_annotations(&[&held_id])).await;
    assert_ne!(start_container(&world, "share", "main").await, [held_gpu]);
    world.kubelet.start_container("before-uid", "main").await.expect("it starts again");
    world.kubelet.delete_pod("before-uid").await;
    until_counts(&world.kubelet, GPU, (88, 80)).await;
    world.agent.stop().await;
}
