//! Exclusive, time-sliced and MIG resources side by side on one node, and a change of MIG while pods run.

use std::time::Duration;

use crate::cluster::{
    NODE_STATUS_LIMIT, eventually, has_cluster,
    kubelet::{allocatable, holdings},
    node::Node,
    plugin_folder_lock,
    pods::{Pods, kubectl, node_status},
};

/// Deadline of a release. The kubelet's checkpoint has it at the next Allocate; before, the agent checks three times.
const RELEASE_LIMIT: Duration = Duration::from_secs(60);

const GPU: &str = "nvidia.com/gpu";
const SHARED: &str = "nvidia.com/gpu.shared";
const SMALL: &str = "nvidia.com/mig-1g.5gb";
const LARGE: &str = "nvidia.com/mig-3g.20gb";

/// GPUs 0 and 1 have MIG instances; 2 and 3 are whole, and 3 is shared.
const CONFIG: &str = "\
health: {quietPeriod: 2s, probeInterval: 1s}
resources:
  - name: nvidia.com/gpu.shared
    devices: {kind: gpu, match: 'device.attributes[\"nvidia.com\"].index == 3'}
    sharing: {method: timeSlicing, replicas: 4}
  - {name: nvidia.com/gpu, devices: {kind: gpu}}
  - {name: nvidia.com/mig-1g.5gb, devices: {kind: mig, profiles: [1g.5gb]}}
  - {name: nvidia.com/mig-3g.20gb, devices: {kind: mig, profiles: [3g.20gb]}}
";

#[tokio::test]
async fn shared_mig_and_exclusive_gpus_serve_pods_while_mig_is_reconfigured() {
    if !has_cluster() {
        return;
    }
    let _lock = plugin_folder_lock();
    let node = Node::new("mig-a100", CONFIG);
    let agent = node.start_agent();
    for (resource, count) in [(GPU, 1), (SHARED, 4), (SMALL, 8), (LARGE, 1)] {
        eventually(NODE_STATUS_LIMIT, Some(count), async || allocatable(resource).await).await;
        let capacity = async || node_status("capacity", resource);
        eventually(NODE_STATUS_LIMIT, count.to_string(), capacity).await;
    }
    let mut pods = Pods::new();
    pods.run("windlass-e2e-exclusive", GPU, 1).await;
    for name in ["windlass-e2e-shared-a", "windlass-e2e-shared-b", "windlass-e2e-shared-c"] {
        pods.run(name, SHARED, 1).await;
        let nodes = async || gpu_nodes(name);
        eventually(NODE_STATUS_LIMIT, ["nvidia3"].map(str::to_owned).to_vec(), nodes).await;
    }
    pods.run("windlass-e2e-large", LARGE, 1).await;
    let nodes = async || gpu_nodes("windlass-e2e-large");
    eventually(NODE_STATUS_LIMIT, ["nvidia1"].map(str::to_owned).to_vec(), nodes).await;

    let holdings_before = holdings().await;
    let registrations = node.log().matches("registered, the kubelet reads").count();
    node.create_mig("0", &["2g.10gb", "1g.5gb"]);
    eventually(NODE_STATUS_LIMIT, Some(2), async || allocatable(SMALL).await).await;
    assert_eq!(holdings().await, holdings_before, "pods on other GPUs keep their devices");
    assert_eq!(node.log().matches("registered, the kubelet reads").count(), registrations);
    pods.run("windlass-e2e-small", SMALL, 1).await;
    let restarts = kubectl(&[
        "get",
        "pods",
        "-o",
        "jsonpath={.items[*].status.containerStatuses[*].restartCount}",
    ]);
    assert!(restarts.split_whitespace().all(|count| count == "0"), "{restarts}");
    pods.delete("windlass-e2e-exclusive");
    pods.run("windlass-e2e-next", GPU, 1).await;
    drop(pods);
    drop(agent);
}

/// Configuration in which the shared GPU becomes exclusive.
const UNSHARED: &str = "\
health: {quietPeriod: 2s, probeInterval: 1s}
resources:
  - {name: nvidia.com/gpu, devices: {kind: gpu}}
";

#[tokio::test]
async fn a_new_configuration_applies_once_containers_release_their_devices() {
    if !has_cluster() {
        return;
    }
    let _lock = plugin_folder_lock();
    let node = Node::new("mig-a100", CONFIG);
    let agent = node.start_agent();
    eventually(NODE_STATUS_LIMIT, Some(4), async || allocatable(SHARED).await).await;
    let mut pods = Pods::new();
    pods.run("windlass-e2e-sharer", SHARED, 1).await;
    let library = "/usr/lib/x86_64-linux-gnu/libcuda.so.1";
    let listing = kubectl(&["exec", "windlass-e2e-sharer", "--", "ls", library]);
    assert_eq!(listing.trim(), library, "the driver's libraries are in the container");

    node.configure(UNSHARED);
    eventually(NODE_STATUS_LIMIT, Some(0), async || allocatable(SHARED).await).await;
    // An Allocate, after which the shared GPU could have moved to the other resource.
    pods.run("windlass-e2e-other", GPU, 1).await;
    assert_eq!(allocatable(GPU).await, Some(1), "a container holds the shared GPU");
    pods.delete("windlass-e2e-sharer");
    let delay = eventually(RELEASE_LIMIT, Some(2), async || allocatable(GPU).await).await;
    eprintln!("the GPU was offered {delay:?} after the deletion of its pod");
    pods.run("windlass-e2e-owner", GPU, 1).await;
    drop(pods);
    drop(agent);
}

/// Names of the GPUs' device nodes in a container's `/dev`.
fn gpu_nodes(pod: &str) -> Vec<String> {
    let log = kubectl(&["logs", pod]);
    let names = log.lines().filter_map(|line| line.rsplit_once(" nvidia"));
    let numbers = names.filter(|(_, number)| number.parse::<u32>().is_ok());
    numbers.map(|(_, number)| format!("nvidia{number}")).collect()
}
