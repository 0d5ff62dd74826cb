//! Shipped examples of `deploy`, applied unchanged: each pod runs with the devices of its claim.

use std::fs;

use super::rig::{Rig, wait_for_running};
use crate::cluster::{
    NODE_STATUS_LIMIT, eventually,
    pods::{Manifests, Pods, kubectl, node_status},
};

/// Adapts an example: the cluster cannot pull the image, and a pod that ends would release its devices.
fn adapt_to_cluster(text: &str) -> String {
    let (image, command) = ("image: busybox\n", "ls -l /dev\"]");
    assert!(text.contains(image) == text.contains(command), "{text}");
    text.replace(image, "image: docker.io/local/app:1\n      imagePullPolicy: Never\n")
        .replace(command, "ls -l /dev; sleep 1000000\"]")
}

fn shipped_manifest(file: &str) -> String {
    let path = format!("{}/../../deploy/{file}", env!("CARGO_MANIFEST_DIR"));
    adapt_to_cluster(&fs::read_to_string(path).expect("a manifest"))
}

fn apply_examples(names: &[&str]) -> Manifests {
    let files = names.iter().map(|name| shipped_manifest(&format!("examples/{name}.yaml")));
    Manifests::apply(
        &[shipped_manifest("deviceclasses.yaml")].into_iter().chain(files).collect::<Vec<_>>(),
    )
}

/// Variables and `/dev` of a running container.
async fn container_view(namespace: &str, pod: &str, container: &str) -> String {
    wait_for_running(namespace, pod).await;
    kubectl(&["-n", namespace, "logs", pod, "-c", container])
}

/// The nodes of whole GPUs in a container.
fn gpus(view: &str) -> Vec<&str> {
    let words = view.split_whitespace();
    words
        .filter(|word| {
            word.strip_prefix("nvidia").is_some_and(|number| number.parse::<u32>().is_ok())
        })
        .collect()
}

#[tokio::test]
async fn the_examples_for_whole_gpus_get_what_they_ask_for() {
    let Some(rig) = Rig::start("dgx-h100", "dra: {offer: instead}\n") else { return };
    rig.wait_for_published(16).await;
    // The kubelet may still list the resource of another test's device plugin.
    let count = async || node_status("allocatable", "nvidia.com/gpu");
    eventually(NODE_STATUS_LIMIT, true, async || ["", "0"].contains(&count().await.as_str())).await;
    let names = [
        "gpu-by-attribute",
        "one-claim-two-containers",
        "gpu-and-nic",
        "extended-resource",
        "admin-access",
    ];
    let manifests = apply_examples(&names);
    assert_eq!(gpus(&container_view("default", "large-gpu", "main").await).len(), 1);
    let views = [
        container_view("default", "two-on-one-gpu", "train").await,
        container_view("default", "two-on-one-gpu", "watch").await,
    ];
    assert_eq!(gpus(&views[0]).len(), 1);
    assert_eq!(gpus(&views[0]), gpus(&views[1]), "two containers share one claim");
    let nic_view = container_view("default", "gpu-and-nic", "main").await;
    assert!(gpus(&nic_view).len() == 1 && nic_view.contains("PCIDEVICE_"), "{nic_view}");
    assert_eq!(
        gpus(&container_view("default", "old-style", "main").await).len(),
        1,
        "by a plain resource"
    );
    assert_eq!(
        gpus(&container_view("gpu-admin", "look", "main").await).len(),
        8,
        "admin access includes allocated GPUs"
    );

    let owners = rig.owners().await;
    let (admin_owners, other_owners): (Vec<_>, Vec<_>) =
        owners.iter().partition(|(claim, _)| claim.starts_with("gpu-admin/"));
    assert_eq!(admin_owners.iter().map(|(_, devices)| devices.len()).collect::<Vec<_>>(), [8]);
    let mut devices: Vec<_> = other_owners.iter().flat_map(|(_, devices)| *devices).collect();
    assert_eq!((other_owners.len(), devices.len()), (4, 5), "four GPUs and a NIC: {owners:?}");
    devices.dedup();
    assert_eq!(devices.len(), 5, "each in one claim: {owners:?}");
    drop(manifests);
    rig.wait_for_no_owners().await;
    let manifests = apply_examples(&["linked-gpus"]);
    assert_eq!(gpus(&container_view("default", "linked-gpus", "main").await).len(), 4);
    drop(manifests);
    rig.wait_for_no_owners().await;
}

#[tokio::test]
async fn the_example_of_admin_access_gets_allocated_and_broken_devices() {
    let Some(rig) = Rig::start("dgx-h100", "dra: {offer: beside}\n") else { return };
    rig.wait_for_published(16).await;
    let count = async || node_status("allocatable", "nvidia.com/gpu");
    eventually(NODE_STATUS_LIMIT, "8".to_owned(), count).await;
    let mut pods = Pods::new();
    pods.run("windlass-e2e-by-plugin", "nvidia.com/gpu", 2).await;
    rig.node.inject_fault("lost@7");
    eventually(NODE_STATUS_LIMIT, "7".to_owned(), count).await;
    let manifests = apply_examples(&["admin-access"]);
    assert_eq!(
        gpus(&container_view("gpu-admin", "look", "main").await).len(),
        8,
        "admin access includes allocated GPUs"
    );
    drop((manifests, pods));
    rig.wait_for_no_owners().await;
}

#[tokio::test]
async fn the_example_for_a_mig_profile_gets_an_instance_that_is_created_and_removed() {
    let config = "dra: {offer: instead, partitions: onDemand}\n";
    let Some(rig) = Rig::start("mig-pcie", config) else { return };
    // Every profile at every place, of two A100 and two A30.
    rig.wait_for_published(2 * 25 + 2 * 13).await;
    let instances = || {
        let document = rig.node.devices();
        let devices = document["devices"].as_array().expect("a list");
        let migs = devices.iter().filter(|device| device["kind"] == "mig");
        migs.map(|mig| mig["id"].to_string()).collect::<Vec<_>>()
    };
    assert_eq!(instances(), Vec::<String>::new(), "an instance exists");
    let manifests = apply_examples(&["mig-profile"]);
    let view = container_view("default", "mig-1g", "main").await;
    let created_ids = instances();
    assert_eq!(created_ids.len(), 1);
    assert!(view.contains(created_ids[0].trim_matches('"')), "{created_ids:?} in {view}");
    let owners = rig.owners().await;
    assert_eq!(owners.values().map(Vec::len).collect::<Vec<_>>(), [1], "{owners:?}");
    drop(manifests);
    rig.wait_for_no_owners().await;
    eventually(NODE_STATUS_LIMIT, Vec::new(), async || instances()).await;
}

#[tokio::test]
async fn the_example_for_a_share_of_memory_gets_its_limit_from_an_mps_daemon() {
    let shares = "[{devices: {kind: gpu, index: [0]}, method: mps, limits: enforced}]";
    let config = format!("dra: {{offer: instead, shares: {shares}}}\n");
    let Some(rig) = Rig::start("dgx-h100", &config) else { return };
    rig.wait_for_published(16).await;
    let manifests = apply_examples(&["memory-share"]);
    let view = container_view("default", "share-of-gpu", "main").await;
    for word in ["CUDA_MPS_PIPE_DIRECTORY=", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=20480M"] {
        assert!(view.contains(word), "{word} in {view}");
    }
    assert_eq!(gpus(&view), ["nvidia0"]);
    let daemons = || fs::read_dir(rig.node.path("machine/host/run/windlass/mps")).into_iter();
    assert_eq!(daemons().flatten().count(), 1, "a daemon serves");
    let owners = rig.owners().await;
    assert_eq!(owners.values().map(Vec::len).collect::<Vec<_>>(), [1], "{owners:?}");
    drop(manifests);
    rig.wait_for_no_owners().await;
    eventually(NODE_STATUS_LIMIT, 0, async || daemons().flatten().count()).await;
}
