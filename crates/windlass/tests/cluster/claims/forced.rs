//! New pods while their predecessors, deleted by force, still end on the node.

use std::time::Duration;

use super::{
    objects::{objects, pod},
    rig::{Rig, wait_for_running},
};
use crate::cluster::{
    eventually,
    pods::{Manifests, Pods, kubectl},
};

/// Deadline of a start without a retry: the kubelet retries a refused claim after 60 to 90 seconds.
const START_LIMIT: Duration = Duration::from_secs(45);

/// Number of pods, equal to the number of GPUs.
const PODS: usize = 8;

fn pod_names(generation: &str) -> Vec<String> {
    (0..PODS).map(|nth| format!("windlass-e2e-{generation}-{nth}")).collect()
}

fn create(pods: &mut Pods, names: &[String]) {
    for name in names {
        pods.apply(name, &pod(name, 1));
    }
}

#[tokio::test]
async fn pods_start_without_retry_after_their_predecessors_are_force_deleted() {
    let Some(rig) = Rig::start("dgx-h100", "dra: {offer: instead}\n") else { return };
    rig.wait_for_published(16).await;
    let manifests = Manifests::apply(&objects());
    let mut pods = Pods::new();
    let (first_names, second_names) = (pod_names("first"), pod_names("second"));
    create(&mut pods, &first_names);
    for name in &first_names {
        wait_for_running("default", name).await;
    }
    let names = first_names.iter().map(String::as_str);
    let arguments = ["delete", "pod", "--force", "--grace-period=0"].into_iter().chain(names);
    kubectl(&arguments.collect::<Vec<_>>());
    create(&mut pods, &second_names);
    let names = second_names.iter().map(String::as_str);
    let phases = ["get", "pods", "-o", "jsonpath={.items[*].status.phase}"].into_iter();
    let phases: Vec<_> = phases.chain(names).collect();
    eventually(START_LIMIT, PODS, async || kubectl(&phases).matches("Running").count()).await;
    assert_eq!(rig.owners().await.values().map(Vec::len).collect::<Vec<_>>(), [1; PODS]);
    drop(pods);
    rig.wait_for_no_owners().await;
    drop(manifests);
}
