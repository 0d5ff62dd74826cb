//! Pods with claims keep running with their devices while agent, kubelet and slices are replaced.

use std::fs;

use super::{
    RELEASE_LIMIT,
    objects::{objects, pod},
    owners::holders,
    rig::{Rig, wait_for_running},
};
use crate::cluster::{
    NODE_STATUS_LIMIT, eventually,
    kubelet::restart,
    pods::{Manifests, Pods, kubectl, node_status},
};

/// Restart counts and start times of the containers of all pods.
pub(super) fn container_starts() -> String {
    let status = "{.metadata.name} {.status.containerStatuses[*].restartCount} \
                  {.status.containerStatuses[*].state.running.startedAt}{\"\\n\"}";
    kubectl(&["get", "pods", "-o", &format!("jsonpath={{range .items[*]}}{status}{{end}}")])
}

/// The UIDs of the published slices.
fn slice_uids() -> String {
    kubectl(&["get", "resourceslices", "-o", "jsonpath={.items[*].metadata.uid}"])
}

#[tokio::test]
async fn pods_keep_their_devices_while_kubelet_agent_and_slices_are_replaced() {
    let Some(mut rig) = Rig::start("dgx-h100", "dra: {offer: instead}\n") else { return };
    rig.wait_for_published(16).await;
    let manifests = Manifests::apply(&objects());
    let mut pods = Pods::new();
    for (name, gpus) in [("windlass-e2e-keep-a", 1), ("windlass-e2e-keep-b", 3)] {
        pods.apply(name, &pod(name, gpus));
        wait_for_running("default", name).await;
    }
    let (owners_before, starts_before, slices_before) =
        (rig.owners().await, container_starts(), slice_uids());
    assert_eq!(owners_before.values().map(Vec::len).sum::<usize>(), 4, "{owners_before:?}");
    assert_eq!(starts_before.matches(" 0 2").count(), 2, "{starts_before}");

    kubectl(&["delete", "resourceslices", "--all"]);
    rig.wait_for_published(16).await;
    assert_ne!(slice_uids(), slices_before, "the deleted slices are still published");
    assert_eq!(rig.owners().await, owners_before, "after the slices were deleted under the agent");

    rig.agent.kill();
    kubectl(&["delete", "resourceslices", "--all"]);
    rig.agent = rig.node.start_agent();
    rig.wait_for_published(16).await;
    assert_eq!(rig.owners().await, owners_before, "after the slices were deleted without an agent");

    if restart() {
        // At its start, the kubelet deletes the slices of its node, and the agent registers again.
        let new_pod = "windlass-e2e-keep-c";
        pods.apply(new_pod, &pod(new_pod, 1));
        wait_for_running("default", new_pod).await;
        rig.wait_for_published(16).await;
        let mut owners_after = rig.owners().await;
        owners_after.retain(|claim, _| owners_before.contains_key(claim));
        assert_eq!(owners_after, owners_before, "after the kubelet restarted");
        pods.delete(new_pod);
    }
    assert_eq!(container_starts(), starts_before, "a container was restarted");

    kubectl(&["delete", "pod", "windlass-e2e-keep-b", "--force", "--grace-period=0"]);
    let device_count = async || rig.owners().await.values().map(Vec::len).sum::<usize>();
    eventually(NODE_STATUS_LIMIT, 1, device_count).await;
    drop(pods);
    rig.wait_for_no_owners().await;
    drop(manifests);
}

#[tokio::test]
async fn gpus_of_a_pod_that_ended_before_a_restart_for_claims_become_free() {
    let Some(mut rig) = Rig::start("dgx-h100", "dra: {offer: beside}\n") else { return };
    rig.wait_for_published(16).await;
    let count = async || node_status("allocatable", "nvidia.com/gpu");
    eventually(NODE_STATUS_LIMIT, "8".to_owned(), count).await;
    let (mut pods, name) = (Pods::new(), "windlass-e2e-ended");
    pods.run(name, "nvidia.com/gpu", 2).await;
    rig.agent.kill();
    pods.delete(name);
    let config = fs::read_to_string(rig.node.path("windlass.yaml")).expect("the configuration");
    rig.node.configure(&config.replace("beside", "instead"));
    rig.agent = rig.node.start_agent();
    rig.wait_for_published(16).await;
    let taints = "jsonpath={.items[*].spec.devices[*].taints[*].key}";
    let taints = ["get", "resourceslices", "-o", taints];
    eventually(RELEASE_LIMIT, String::new(), async || kubectl(&taints)).await;
    assert_eq!(holders(&rig.node), Vec::<String>::new());
}
