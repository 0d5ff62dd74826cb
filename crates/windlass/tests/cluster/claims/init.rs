//! GPUs that an init container holds through the device plugin. The kubelet's pod resources omit them, so only the
//! kubelet's checkpoint prevents claims from getting these GPUs. The kubelet rewrites the checkpoint when the agent
//! sends its device list again, even if no pod changes. The checkpoint has the GPUs until the pod is gone.

use std::{fs, os::unix::fs::MetadataExt as _};

use super::{
    PREPARE_LIMIT, RELEASE_LIMIT,
    objects::{objects, pod},
    rig::{Rig, trigger_sync, wait_for_running},
};
use crate::cluster::{
    NODE_STATUS_LIMIT, eventually,
    kubelet::holdings,
    node::Node,
    pods::{Manifests, Pods, kubectl, node_status},
};

const CHECKPOINT: &str = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint";

const HOLDER: &str = "windlass-e2e-init";
const NEXT: &str = "windlass-e2e-after-init";

/// Metric of the `NodePrepareResources` calls that the agent refused.
const REFUSED_CALLS: &str = "windlass_dra_calls_total{call=\"prepare\",result=\"failed\"} ";

/// Number of rewrites to wait for while no pod changes.
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

/// Claim templates that tolerate all taints, because the slices taint the GPUs that containers have.
fn tolerant_templates() -> Vec<String> {
    let request_start = "exactly: {deviceClassName: windlass-e2e-gpu, ";
    let tolerant_start = format!("{request_start}tolerations: [{{operator: Exists}}], ");
    objects().iter().map(|object| object.replace(request_start, &tolerant_start)).collect()
}

/// Waits until the kubelet has replaced its checkpoint.
async fn wait_for_rewrite() {
    let identity = || {
        let metadata = fs::metadata(CHECKPOINT).expect("a checkpoint");
        (metadata.ino(), metadata.mtime(), metadata.mtime_nsec())
    };
    let previous = identity();
    eventually(RELEASE_LIMIT, true, async || identity() != previous).await;
}

/// Number of logged events that may cause a write of the checkpoint. A list that is sent again is logged at debug level
/// only, so it is not counted.
fn write_causes(node: &Node) -> usize {
    let log = node.log();
    ["list sent", "allocated", "registered"].map(|word| log.matches(word).count()).iter().sum()
}

#[tokio::test]
async fn gpus_of_an_init_container_are_not_claimable_until_it_ends() {
    let Some(rig) = Rig::start("dgx-h100", "dra: {offer: beside}\n") else { return };
    rig.wait_for_published(16).await;
    let count = async || node_status("allocatable", "nvidia.com/gpu");
    eventually(NODE_STATUS_LIMIT, "8".to_owned(), count).await;
    let manifests = Manifests::apply(&tolerant_templates());
    let mut pods = Pods::new();
    pods.apply(HOLDER, &holder());
    let path = "jsonpath={.status.initContainerStatuses[0].state.running.startedAt}";
    let is_running = async || !kubectl(&["get", "pod", HOLDER, "-o", path]).is_empty();
    eventually(NODE_STATUS_LIMIT, true, is_running).await;
    let causes_before = write_causes(&rig.node);
    assert!(causes_before > 0, "the agent has registered, but its log has none of the messages");
    for _ in 0..REWRITES {
        wait_for_rewrite().await;
    }
    assert_eq!(
        write_causes(&rig.node),
        causes_before,
        "the checkpoint was rewritten for another reason than a list"
    );
    let holdings = holdings().await.expect("pod resources");
    assert!(
        !holdings.contains_key(HOLDER),
        "pod resources has the init container's GPUs: {holdings:?}"
    );

    pods.apply(NEXT, &pod(NEXT, 1));
    let is_refused = async || {
        let metrics = rig.metrics().expect("the agent answered");
        metrics.lines().any(|line| line.starts_with(REFUSED_CALLS) && !line.ends_with(" 0"))
    };
    eventually(PREPARE_LIMIT, true, is_refused).await;
    let holders = rig.node.devices()["holders"].to_string();
    assert!(!holders.contains("\"dra\""), "a claim has a device: {holders}");

    pods.delete(HOLDER);
    wait_for_rewrite().await;
    trigger_sync(&[NEXT]);
    wait_for_running("default", NEXT).await;
    drop(pods);
    rig.wait_for_no_owners().await;
    drop(manifests);
}
