//! Pods with claims keep running with their devices while agent, kubelet and slices are replaced.

use super::{
    objects::{objects, pod},
    rig::{Rig, wait_for_running},
};
use crate::cluster::{
    NODE_STATUS, eventually,
    kubelet::restart,
    pods::{Manifests, Pods, kubectl},
};

/// Restart counts and start times of the containers of all pods.
pub(super) fn container_starts() -> String {
    let status = "{.metadata.name} {.status.containerStatuses[*].restartCount} \
                  {.status.containerStatuses[*].state.running.startedAt}{\"\\n\"}";
    kubectl(&["get", "pods", "-o", &format!("jsonpath={{range .items[*]}}{status}{{end}}")])
}

/// The UIDs of the published slices.
fn slices() -> String {
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
    let (held, starts_before, published) = (rig.owners().await, container_starts(), slices());
    assert_eq!(held.values().map(Vec::len).sum::<usize>(), 4, "{held:?}");
    assert_eq!(starts_before.matches(" 0 2").count(), 2, "{starts_before}");

    kubectl(&["delete", "resourceslices", "--all"]);
    rig.wait_for_published(16).await;
    assert_ne!(slices(), published, "the deleted slices are still published");
    assert_eq!(rig.owners().await, held, "after the slices were deleted under the agent");

    rig.agent.kill();
    kubectl(&["delete", "resourceslices", "--all"]);
    rig.agent = rig.node.agent();
    rig.wait_for_published(16).await;
    assert_eq!(rig.owners().await, held, "after the slices were deleted without an agent");

    if restart() {
        // At its start, the kubelet deletes the slices of its node, and the agent registers again.
        let next = "windlass-e2e-keep-c";
        pods.apply(next, &pod(next, 1));
        wait_for_running("default", next).await;
        rig.wait_for_published(16).await;
        let mut after = rig.owners().await;
        after.retain(|claim, _| held.contains_key(claim));
        assert_eq!(after, held, "after the kubelet restarted");
        pods.delete(next);
    }
    assert_eq!(container_starts(), starts_before, "a container was restarted");

    kubectl(&["delete", "pod", "windlass-e2e-keep-b", "--force", "--grace-period=0"]);
    let left = async || rig.owners().await.values().map(Vec::len).sum::<usize>();
    eventually(NODE_STATUS, 1, left).await;
    drop(pods);
    rig.wait_for_no_owners().await;
    drop(manifests);
}
