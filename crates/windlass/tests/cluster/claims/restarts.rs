//! Pods with claims go on, and keep what they have, whatever else begins anew.

use super::{
    objects::{objects, pod},
    rig::{Rig, until_it_runs},
};
use crate::cluster::{
    NODE_STATUS, eventually,
    kubelet::restart,
    pods::{Manifests, Pods, kubectl},
};

/// When the containers of all pods were started, and how often they were started anew.
pub(super) fn lives() -> String {
    let status = "{.metadata.name} {.status.containerStatuses[*].restartCount} \
                  {.status.containerStatuses[*].state.running.startedAt}{\"\\n\"}";
    kubectl(&["get", "pods", "-o", &format!("jsonpath={{range .items[*]}}{status}{{end}}")])
}

/// The UIDs of the published slices.
fn slices() -> String {
    kubectl(&["get", "resourceslices", "-o", "jsonpath={.items[*].metadata.uid}"])
}

#[tokio::test]
async fn pods_keep_their_devices_while_kubelet_agent_and_slices_begin_anew() {
    let Some(mut rig) = Rig::start("dgx-h100", "dra: {offer: instead}\n") else { return };
    rig.published(16).await;
    let manifests = Manifests::apply(&objects());
    let mut pods = Pods::none();
    for (name, gpus) in [("windlass-e2e-keep-a", 1), ("windlass-e2e-keep-b", 3)] {
        pods.apply(name, &pod(name, gpus));
        until_it_runs("default", name).await;
    }
    let (held, lives_before, published) = (rig.owners().await, lives(), slices());
    assert_eq!(held.values().map(Vec::len).sum::<usize>(), 4, "{held:?}");
    assert_eq!(lives_before.matches(" 0 2").count(), 2, "{lives_before}");

    kubectl(&["delete", "resourceslices", "--all"]);
    rig.published(16).await;
    assert_ne!(slices(), published, "others than those that were deleted");
    assert_eq!(rig.owners().await, held, "after the slices were deleted under the agent");

    rig.agent.kill();
    kubectl(&["delete", "resourceslices", "--all"]);
    rig.agent = rig.node.agent();
    rig.published(16).await;
    assert_eq!(rig.owners().await, held, "after the slices were deleted without an agent");

    if restart() {
        // It deletes the slices of its node when it starts, and has the agent register anew.
        let next = "windlass-e2e-keep-c";
        pods.apply(next, &pod(next, 1));
        until_it_runs("default", next).await;
        rig.published(16).await;
        let mut after = rig.owners().await;
        after.retain(|claim, _| held.contains_key(claim));
        assert_eq!(after, held, "after the kubelet began anew");
        pods.delete(next);
    }
    assert_eq!(lives(), lives_before, "no container was disturbed");

    kubectl(&["delete", "pod", "windlass-e2e-keep-b", "--force", "--grace-period=0"]);
    let left = async || rig.owners().await.values().map(Vec::len).sum::<usize>();
    eventually(NODE_STATUS, 1, left).await;
    drop(pods);
    rig.nothing_is_held().await;
    drop(manifests);
}
