//! GPUs that an init container holds through the device plugin. The kubelet's pod resources omit them, so only its
//! checkpoint keeps claims from these GPUs. The kubelet rewrites the checkpoint when the agent sends its list again,
//! even if no pod changes. The checkpoint has the GPUs until the pod is gone.

use std::{fs, os::unix::fs::MetadataExt as _};

use super::{
    PREPARED, RELEASED,
    objects::{objects, pod},
    rig::{Rig, trigger_sync, until_it_runs},
};
use crate::cluster::{
    NODE_STATUS, eventually,
    kubelet::holdings,
    node::Node,
    pods::{Manifests, Pods, kubectl, node_status},
};

const CHECKPOINT: &str = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint";

const HOLDER: &str = "windlass-e2e-init";
const NEXT: &str = "windlass-e2e-after-init";

/// Calls of the kubelet for a claim that the agent refused.
const REFUSED: &str = "windlass_dra_calls_total{call=\"prepare\",result=\"failed\"} ";

/// Tolerated rewrites of the checkpoint without a cause.
const REWRITES: usize = 2;

/// Pod whose init container has all GPUs and never ends.
fn holder() -> String {
    let container = "image: \"docker.io/local/app:1\", imagePullPolicy: Never";
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {HOLDER}}}\nspec:\n  \
         automountServiceAccountToken: false\n  terminationGracePeriodSeconds: 0\n  \
         initContainers: [{{name: first, {container}, resources: {{limits: {{nvidia.com/gpu: 8}}}}}}]\n  \
         containers: [{{name: main, {container}}}]\n"
    )
}

/// Objects of claims that tolerate all taints. The slices taint the GPUs that containers have.
fn tolerant() -> Vec<String> {
    let exactly = "exactly: {deviceClassName: windlass-e2e-gpu, ";
    let tolerates_all = format!("{exactly}tolerations: [{{operator: Exists}}], ");
    objects().iter().map(|object| object.replace(exactly, &tolerates_all)).collect()
}

/// Waits until the kubelet has replaced its checkpoint.
async fn wait_for_rewrite() {
    let identity = || {
        let record = fs::metadata(CHECKPOINT).expect("a checkpoint");
        (record.ino(), record.mtime(), record.mtime_nsec())
    };
    let before = identity();
    eventually(RELEASED, true, async || identity() != before).await;
}

/// Messages between agent and kubelet, each of which may cause a write.
fn reasons(node: &Node) -> usize {
    let log = node.log();
    ["list sent", "allocated", "registered"].map(|word| log.matches(word).count()).iter().sum()
}

#[tokio::test]
async fn what_an_init_container_has_is_no_claims_until_the_record_that_a_list_brings_lets_go() {
    let Some(rig) = Rig::start("dgx-h100", "dra: {offer: beside}\n") else { return };
    rig.wait_for_published(16).await;
    let count = async || node_status("allocatable", "nvidia.com/gpu");
    eventually(NODE_STATUS, "8".to_owned(), count).await;
    let manifests = Manifests::apply(&tolerant());
    let mut pods = Pods::none();
    pods.apply(HOLDER, &holder());
    let started = "jsonpath={.status.initContainerStatuses[0].state.running.startedAt}";
    let runs = async || !kubectl(&["get", "pod", HOLDER, "-o", started]).is_empty();
    eventually(NODE_STATUS, true, runs).await;
    let before = reasons(&rig.node);
    assert!(before > 0, "the agent has registered, but its log has none of the messages");
    for _ in 0..REWRITES {
        wait_for_rewrite().await;
    }
    assert_eq!(
        reasons(&rig.node),
        before,
        "the checkpoint was rewritten for another reason than a list"
    );
    let holdings = holdings().await.expect("pod resources");
    assert!(
        !holdings.contains_key(HOLDER),
        "pod resources has the init container's GPUs: {holdings:?}"
    );

    pods.apply(NEXT, &pod(NEXT, 1));
    let refused = async || {
        let metrics = rig.metrics().expect("the agent answered");
        metrics.lines().any(|line| line.starts_with(REFUSED) && !line.ends_with(" 0"))
    };
    eventually(PREPARED, true, refused).await;
    let devices = rig.node.devices()["holders"].to_string();
    assert!(!devices.contains("\"dra\""), "a claim has a device: {devices}");

    pods.delete(HOLDER);
    wait_for_rewrite().await;
    trigger_sync(&[NEXT]);
    until_it_runs("default", NEXT).await;
    drop(pods);
    rig.wait_for_no_owners().await;
    drop(manifests);
}
