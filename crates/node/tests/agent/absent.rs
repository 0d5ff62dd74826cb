//! Device nodes that vanish while their devices answer: a device that Allocate would refuse is not offered.

use std::{fs, path::PathBuf};

use windlass_kubelet_api::deviceplugin::{
    ContainerPreferredAllocationRequest, PreferredAllocationRequest,
};
use windlass_testkit::{GPU, Node, RunningAgent};

use crate::agent::world::{client, gpu_id, gpu_node, pod, until_gpu_counts};

/// Path of a GPU's device node, by index.
fn device_node(world: &Node, index: u32) -> PathBuf {
    world.config.places.host_root.join(format!("dev/nvidia{index}"))
}

fn obstacle(agent: &RunningAgent, id: &str) -> Option<String> {
    agent.state.borrow().device_offers().get(id)?.obstacle.clone()
}

#[tokio::test]
async fn a_gpu_without_its_node_fails_no_pod_and_is_offered_again_with_the_node() {
    let world = gpu_node("dgx-h100");
    let (kubelet, agent) = world.start_ready(8).await;
    let (removed, moved) = (gpu_id(&agent, 0), world.folder.join("away"));
    fs::rename(device_node(&world, 0), &moved).expect("moved");

    let mut plugin = client(&kubelet, GPU).await;
    let ids: Vec<_> = (0..8).map(|index| gpu_id(&agent, index)).collect();
    let request = ContainerPreferredAllocationRequest {
        available_device_i_ds: ids,
        allocation_size: 7,
        ..ContainerPreferredAllocationRequest::default()
    };
    let request = PreferredAllocationRequest { container_requests: vec![request] };
    let answer = plugin.get_preferred_allocation(request).await.expect("seven GPUs are available");
    let preferred = &answer.get_ref().container_responses[0].device_i_ds;
    assert!(preferred.len() == 7 && !preferred.contains(&removed), "at once: {preferred:?}");

    until_gpu_counts(&kubelet, (8, 7)).await;
    let reason = obstacle(&agent, &removed).expect("withheld");
    assert!(reason.contains("/dev/nvidia0 is missing on this node"), "{reason}");
    for number in 0..7 {
        kubelet.admit(pod(&format!("p{number}"), 1)).await.expect("seven good GPUs are free");
    }
    fs::rename(&moved, device_node(&world, 0)).expect("moved");
    until_gpu_counts(&kubelet, (8, 8)).await;
    assert_eq!(obstacle(&agent, &removed), None);
    kubelet.admit(pod("last", 1)).await.expect("it is back");
}

#[tokio::test]
async fn gpus_of_a_driver_without_device_nodes_are_listed_and_not_allocated() {
    let world = gpu_node("dgx-h100");
    for index in 0..8 {
        fs::remove_file(device_node(&world, index)).expect("it was there");
    }
    let (kubelet, agent) = (world.start_kubelet(), world.start_agent());
    until_gpu_counts(&kubelet, (8, 0)).await;
    let reason = obstacle(&agent, &gpu_id(&agent, 5)).expect("withheld");
    assert!(reason.contains("/dev/nvidia5 is missing"), "{reason}");
}
