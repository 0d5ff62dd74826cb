//! GPUs that a plain init container has by the device plugin. The kubelet's pod resources do not tell of them, so its
//! record alone keeps claims away: it is written anew when the agent sends its list again, with no pod that comes or
//! goes, has them still, and has them no longer once the pod is gone.

use std::{fs, os::unix::fs::MetadataExt as _};

use super::{
    LET_GO, PREPARED,
    objects::{objects, pod},
    rig::{Rig, look_again, until_it_runs},
};
use crate::cluster::{
    NODE_STATUS, eventually,
    kubelet::holdings,
    node::Node,
    pods::{Manifests, Pods, kubectl, node_status},
};

const RECORD: &str = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint";

const HOLDER: &str = "windlass-e2e-init";
const NEXT: &str = "windlass-e2e-after-init";

/// Calls of the kubelet for a claim that the agent refused.
const REFUSED: &str = "windlass_dra_calls_total{call=\"prepare\",result=\"failed\"} ";

/// Tolerated rewrites of the checkpoint without a cause.
const REWRITES: usize = 2;

/// A pod whose init container has all GPUs and never ends.
fn holder() -> String {
    let container = "image: \"docker.io/local/app:1\", imagePullPolicy: Never";
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {HOLDER}}}\nspec:\n  \
         automountServiceAccountToken: false\n  terminationGracePeriodSeconds: 0\n  \
         initContainers: [{{name: first, {container}, resources: {{limits: {{nvidia.com/gpu: 8}}}}}}]\n  \
         containers: [{{name: main, {container}}}]\n"
    )
}

/// The objects of claims, with one for which a scheduler minds no taint: the slices say what containers have.
fn tolerant() -> Vec<String> {
    let exactly = "exactly: {deviceClassName: windlass-e2e-gpu, ";
    let minds_none = format!("{exactly}tolerations: [{{operator: Exists}}], ");
    objects().iter().map(|object| object.replace(exactly, &minds_none)).collect()
}

/// Waits until the kubelet has put another record into the place of this one.
async fn written_anew() {
    let identity = || {
        let record = fs::metadata(RECORD).expect("a record");
        (record.ino(), record.mtime(), record.mtime_nsec())
    };
    let before = identity();
    eventually(LET_GO, true, async || identity() != before).await;
}

/// Messages between agent and kubelet, each of which may cause a write.
fn reasons(node: &Node) -> usize {
    let log = node.log();
    ["list sent", "allocated", "registered"].map(|word| log.matches(word).count()).iter().sum()
}

#[tokio::test]
async fn what_an_init_container_has_is_no_claims_until_the_record_that_a_list_brings_lets_go() {
    let Some(rig) = Rig::start("dgx-h100", "dra: {offer: beside}\n") else { return };
    rig.published(16).await;
    let count = async || node_status("allocatable", "nvidia.com/gpu");
    eventually(NODE_STATUS, "8".to_owned(), count).await;
    let manifests = Manifests::apply(&tolerant());
    let mut pods = Pods::none();
    pods.apply(HOLDER, &holder());
    let started = "jsonpath={.status.initContainerStatuses[0].state.running.startedAt}";
    let runs = async || !kubectl(&["get", "pod", HOLDER, "-o", started]).is_empty();
    eventually(NODE_STATUS, true, runs).await;
    let before = reasons(&rig.node);
    assert!(before > 0, "the agent has registered, and says it in other words");
    for _ in 0..REWRITES {
        written_anew().await;
    }
    assert_eq!(reasons(&rig.node), before, "no reason but a list that was sent again");
    let told = holdings().await.expect("the kubelet tells who has what");
    assert!(!told.contains_key(HOLDER), "then there is nothing to show: {told:?}");

    pods.apply(NEXT, &pod(NEXT, 1));
    let refused = async || {
        let metrics = rig.metrics().expect("the agent answered");
        metrics.lines().any(|line| line.starts_with(REFUSED) && !line.ends_with(" 0"))
    };
    eventually(PREPARED, true, refused).await;
    let devices = rig.node.devices()["holders"].to_string();
    assert!(!devices.contains("\"dra\""), "nobody has a claim's: {devices}");

    pods.delete(HOLDER);
    written_anew().await;
    look_again(&[NEXT]);
    until_it_runs("default", NEXT).await;
    drop(pods);
    rig.nothing_is_held().await;
    drop(manifests);
}
