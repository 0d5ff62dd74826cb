//! Shares of GPUs by amount on a real kubelet: the container gets the GPU that the agent chooses after Allocate.

use serde_json::{Value, json};

use crate::cluster::{
    KUBECONFIG, NODE_STATUS_LIMIT, eventually, has_cluster,
    kubelet::allocatable,
    node::Node,
    plugin_folder_lock,
    pods::{Pods, kubectl},
};

pub(crate) const MEMORY: &str = "windlass.dev/gpu-memory";

/// GiB of eight GPUs.
pub(crate) const ALL_GPUS_GIB: usize = 8 * 79;

pub(crate) fn config() -> String {
    let kubeconfig = std::env::var(KUBECONFIG).expect("checked");
    let node = kubectl(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"]);
    format!(
        "cluster: {{kubeconfig: {kubeconfig}, nodeName: {node}}}\n\
         shares: {{memory: {MEMORY}, compute: windlass.dev/gpu-compute}}\n\
         health: {{quietPeriod: 2s, probeInterval: 1s}}\n"
    )
}

/// Pod that no scheduler binds.
pub(crate) fn pod(name: &str, memory_gib: u32) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\n\
         spec:\n  schedulerName: windlass-e2e\n  automountServiceAccountToken: false\n  \
         terminationGracePeriodSeconds: 0\n  containers:\n  \
         - name: main\n    image: docker.io/local/app:1\n    imagePullPolicy: Never\n    \
         resources: {{limits: {{{MEMORY}: {memory_gib}}}}}\n"
    )
}

/// Binds a pod with its placement, as the extender does. The agent ignores a placement that the pod's author wrote.
pub(crate) fn bind(pod: &str, memory_gib: u32, gpu: &str) {
    let node = kubectl(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"]);
    let placement = json!({"devices": [{"id": gpu, "memoryMib": memory_gib * 1024}]}).to_string();
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding",
        "metadata": {"name": pod, "annotations": {"windlass.dev/placement": placement}},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    });
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), binding.to_string()).expect("written");
    let path = format!("/api/v1/namespaces/default/pods/{pod}/binding");
    kubectl(&["create", "--raw", &path, "-f", &file.path().display().to_string()]);
}

/// GPU in the environment of a pod's container.
fn gpu_of(pod: &str) -> String {
    let log = kubectl(&["logs", pod]);
    let share =
        log.lines().find_map(|line| line.split_once("WINDLASS_SHARE=").map(|(_, value)| value));
    let share: Value = serde_json::from_str(share.expect("a share").trim()).expect("JSON");
    share["device"].as_str().expect("an id").to_owned()
}

#[tokio::test]
async fn pods_share_the_gpu_that_their_binding_names() {
    if !has_cluster() {
        return;
    }
    let _lock = plugin_folder_lock();
    let node = Node::new("dgx-h100", &config());
    let mut agent = node.start_agent();
    eventually(NODE_STATUS_LIMIT, Some(ALL_GPUS_GIB), async || allocatable(MEMORY).await).await;
    let devices = node.devices();
    let gpus = devices["devices"].as_array().into_iter().flatten();
    let mut gpus =
        gpus.filter_map(|device| device["id"].as_str()).filter(|id| id.starts_with("GPU-"));
    let gpu = gpus.nth(5).expect("eight GPUs").to_owned();
    let mut pods = Pods::new();
    for name in ["windlass-e2e-share-a", "windlass-e2e-share-b"] {
        pods.apply(name, &pod(name, 30));
        bind(name, 30, &gpu);
        pods.wait_for_running(name).await;
        eventually(NODE_STATUS_LIMIT, gpu.clone(), async || gpu_of(name)).await;
    }
    agent.kill();
    let agent = node.start_agent();
    eventually(NODE_STATUS_LIMIT, Some(ALL_GPUS_GIB), async || allocatable(MEMORY).await).await;
    pods.apply("windlass-e2e-share-c", &pod("windlass-e2e-share-c", 30));
    bind("windlass-e2e-share-c", 30, &gpu);
    pods.wait_for_running("windlass-e2e-share-c").await;
    assert_ne!(gpu_of("windlass-e2e-share-c"), gpu, "a GPU has less than 90 GiB");
    drop(pods);
    drop(agent);
}
