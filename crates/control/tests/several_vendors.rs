//! A node with GPUs of two vendors: NVIDIA's as whole GPUs, and AMD's as shares.

use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};

use crate::rig::{Extender, TestCluster};

fn add_node(cluster: &TestCluster) {
    let gpu = |id: &str, model, only_for| json!({"id": id, "model": model, "memoryMib": 24576, "onlyFor": only_for});
    let devices = json!({"devices": [
        gpu("GPU-0", "A10", "whole"), gpu("GPU-1", "A10", "whole"),
        gpu("amd-0", "MI300X", "shares"), gpu("amd-1", "MI300X", "shares"),
    ]});
    let node = json!({
        "metadata": {"name": "a", "annotations": {"windlass.dev/devices": devices.to_string()}},
        "status": {"allocatable": {"cpu": "64", "memory": "256Gi", "pods": "110"}},
    });
    cluster.server.objects().put::<Node>(&serde_json::from_value(node).expect("a Node"));
}

/// Binds a pod, and returns the ids of its GPUs.
async fn bind_pod(
    cluster: &TestCluster,
    extender: &Extender,
    name: &str,
    limits: Value,
) -> Vec<String> {
    let pod = cluster.add_pod(name, limits);
    assert_eq!(extender.bind(&pod, "a").await, "", "{name}");
    let placement: Value =
        serde_json::from_str(&cluster.placement(name).expect("bound").1).expect("JSON");
    let devices = placement["devices"].as_array().expect("GPUs").iter();
    devices.map(|device| device["id"].as_str().expect("an id").to_owned()).collect()
}

#[tokio::test]
async fn whole_gpus_are_nvidias_and_shares_are_of_the_other_vendors() {
    let cluster = TestCluster::start();
    add_node(&cluster);
    let extender = cluster.extender("one").await;
    let whole = |count: &str| json!({"nvidia.com/gpu": count});
    let share = |gib: &str| json!({"windlass.dev/gpu-memory": gib});
    let three = cluster.add_pod("three", whole("3"));
    assert!(extender.filter(&three, &["a"]).await.0.is_empty(), "AMD's GPUs are not counted");
    assert_eq!(bind_pod(&cluster, &extender, "first", share("8")).await, ["amd-0"]);
    assert_eq!(bind_pod(&cluster, &extender, "both", whole("2")).await, ["GPU-0", "GPU-1"]);
    assert_eq!(bind_pod(&cluster, &extender, "second", share("24")).await, ["amd-1"]);
    let third = cluster.add_pod("third", share("17"));
    assert!(extender.filter(&third, &["a"]).await.0.is_empty(), "NVIDIA's GPUs are not shared");
    extender.stop().await;
    // Another replica reads the placements from the annotations.
    let extender = cluster.extender("two").await;
    assert_eq!(bind_pod(&cluster, &extender, "last", share("16")).await, ["amd-0"]);
    extender.stop().await;
}

#[tokio::test]
async fn a_product_restriction_applies_to_restricted_gpus_too() {
    let cluster = TestCluster::start();
    add_node(&cluster);
    let extender = cluster.extender("one").await;
    let accepts = |product: &str| json!({"nvidia.com/use-gputype": product});
    let limits = json!({"windlass.dev/gpu-memory": "8"});
    let pod = cluster.add_pod_with("amd", &limits, &accepts("MI300X"));
    assert_eq!(extender.bind(&pod, "a").await, "");
    let pod = cluster.add_pod_with("nvidia", &limits, &accepts("A10"));
    assert!(extender.filter(&pod, &["a"]).await.0.is_empty());
    extender.stop().await;
}
