//! HAMi's manifests: shares of several GPUs under the resource name of whole GPUs, and GPUs selected by id.

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::rig::{Extender, TestCluster};

fn limits(count: &str, resource: &str, amount: &str) -> Value {
    json!({"nvidia.com/gpu": count, format!("nvidia.com/{resource}"): amount})
}

/// Binds a pod, and returns its placement's GPUs.
async fn bind_pod(cluster: &TestCluster, extender: &Extender, pod: &Value) -> Value {
    let name = pod["metadata"]["name"].as_str().expect("a name");
    assert_eq!(extender.bind(pod, "a").await, "", "{name}");
    let placement = cluster.placement(name).expect("bound").1;
    serde_json::from_str::<Value>(&placement).expect("JSON")["devices"].take()
}

#[tokio::test]
async fn pods_of_hami_share_gpus_beside_whole_ones() {
    let cluster = TestCluster::start();
    cluster.add_virtual_node("a", 3);
    let extender = cluster.extender("one").await;
    let first = cluster.add_pod("first", limits("2", "gpumem", "3000"));
    let first = bind_pod(&cluster, &extender, &first).await;
    let share = |n| json!({"id": format!("GPU-a-{n}"), "memoryMib": 3000});
    assert_eq!(first, json!([share(0), share(1)]));
    let half = limits("1", "gpumem-percentage", "50");
    // The best GPU depends on the pods that the watch has delivered, so an annotation selects one.
    let half = cluster.add_pod_with("half", &half, &json!({"nvidia.com/use-gpuuuid": "GPU-a-0"}));
    let half = bind_pod(&cluster, &extender, &half).await;
    assert_eq!(half, json!([{"id": "GPU-a-0", "memoryMib": 12288}]));
    let whole = cluster.add_pod("whole", json!({"nvidia.com/gpu": "1"}));
    assert_eq!(bind_pod(&cluster, &extender, &whole).await, json!([{"id": "GPU-a-2"}]));
    // Without an amount of memory, a share has all memory of its GPU.
    let cores = cluster.add_pod("cores", limits("1", "gpucores", "30"));
    let reason =
        "300 thousandths and 100 % of the memory of one GPU requested; no GPU has as much free";
    assert_eq!(extender.filter(&cores, &["a"]).await.1["a"], reason);
    extender.wait_for_gauge("pods", "4.0").await;
    cluster.server.objects().delete::<Pod>("default", "whole").expect("deleted");
    extender.wait_for_gauge("pods", "3.0").await;
    let cores = bind_pod(&cluster, &extender, &cores).await;
    assert_eq!(cores, json!([{"id": "GPU-a-2", "memoryMib": 24576, "computeMilli": 300}]));
    extender.stop().await;
    // Another replica reads the placements from the annotations.
    let extender = cluster.extender("two").await;
    let last = cluster.add_pod("last", limits("2", "gpumem", "9288"));
    assert_eq!(bind_pod(&cluster, &extender, &last).await.as_array().expect("GPUs").len(), 2);
    let more = cluster.add_pod("more", limits("1", "gpumem", "12289"));
    assert!(extender.filter(&more, &["a"]).await.0.is_empty());
    extender.stop().await;
}

#[tokio::test]
async fn a_node_with_whole_gpus_is_refused_and_its_pods_count_as_whole() {
    let cluster = TestCluster::start();
    cluster.add_node("a", 2);
    let extender = cluster.extender("one").await;
    let pod = cluster.add_pod("pod", limits("1", "gpumem", "3000"));
    let (fit, reasons) = extender.filter(&pod, &["a"]).await;
    assert!(fit.is_empty());
    let reason = reasons["a"].as_str().expect("a reason");
    assert!(
        reason.starts_with("unresolvable: node a gives whole GPUs as nvidia.com/gpu"),
        "{reason}"
    );
    // A pod that another scheduler bound.
    let mut pod = pod;
    pod["spec"]["nodeName"] = "a".into();
    cluster.server.objects().put::<Pod>(&serde_json::from_value(pod).expect("a Pod"));
    extender.wait_for_gauge("idle_gpus", "1.0").await;
    // The same on a full node: an eviction there would be useless.
    let mut whole = cluster.add_pod("whole", json!({"nvidia.com/gpu": "1"}));
    whole["spec"]["nodeName"] = "a".into();
    cluster.server.objects().put::<Pod>(&serde_json::from_value(whole).expect("a Pod"));
    extender.wait_for_gauge("idle_gpus", "0.0").await;
    let mut urgent = cluster.add_pod("urgent", limits("1", "gpumem", "3000"));
    urgent["spec"]["priority"] = 1000.into();
    let (_, reasons) = extender.filter(&urgent, &["a"]).await;
    let reason = reasons["a"].as_str().expect("a reason");
    assert!(reason.starts_with("unresolvable: node a gives whole GPUs"), "{reason}");
    let victims = json!({"Pod": urgent, "NodeNameToMetaVictims": {"a": {"Pods": []}}});
    let answer = extender.call("preempt", &victims).await;
    assert_eq!(answer["NodeNameToMetaVictims"], json!({}));
    let alone = cluster.add_pod("alone", json!({"nvidia.com/gpumem": "3000"}));
    let (_, reasons) = extender.filter(&alone, &["a"]).await;
    let reason = "unresolvable: nvidia.com/gpumem needs nvidia.com/gpu in the same container: the kubelet gives no GPU without it";
    assert_eq!(reasons["a"], reason);
    extender.stop().await;
}

#[tokio::test]
async fn pods_get_the_gpus_that_they_accept_by_id() {
    let cluster = TestCluster::start();
    for node in ["a", "b"] {
        cluster.add_virtual_node(node, 2);
    }
    let extender = cluster.extender("one").await;
    let accepting = |name: &str, limits: &Value, key: &str, ids: &str| {
        cluster.add_pod_with(name, limits, &json!({format!("nvidia.com/{key}"): ids}))
    };
    let one = json!({"nvidia.com/gpu": "1"});
    let first = accepting("first", &one, "use-gpuuuid", "GPU-a-1,GPU-x");
    let (fit, reasons) = extender.filter(&first, &["a", "b"]).await;
    assert_eq!(fit, ["a"]);
    let reason = "unresolvable: 0 of the node's GPUs are accepted by the pod's nvidia.com/use-gpuuuid and nouse-gpuuuid: 1 whole GPU requested, 0 free";
    assert_eq!(reasons["b"], reason);
    assert_eq!(extender.ranked(&first, &["a", "b"]).await, ["a"]);
    assert_eq!(bind_pod(&cluster, &extender, &first).await, json!([{"id": "GPU-a-1"}]));
    let second = accepting("second", &limits("1", "gpumem", "3000"), "nouse-gpuuuid", "GPU-a-0");
    let (fit, reasons) = extender.filter(&second, &["a", "b"]).await;
    assert_eq!(fit, ["b"]);
    let reason = reasons["a"].as_str().expect("a reason");
    assert!(reason.starts_with("1 of the node's GPUs are accepted"), "{reason}");
    let third = accepting("third", &one, "nouse-gpuuuid", "GPU-x");
    assert_eq!(bind_pod(&cluster, &extender, &third).await, json!([{"id": "GPU-a-0"}]));
    extender.stop().await;
}

#[tokio::test]
async fn a_pod_of_another_scheduler_holds_a_share_of_each_requested_gpu() {
    let cluster = TestCluster::start();
    cluster.add_virtual_node("a", 3);
    // Bound without the extender, so its annotations name no GPUs.
    let mut pod = cluster.add_pod("bound", limits("2", "gpumem", "24000"));
    pod["spec"]["nodeName"] = "a".into();
    cluster.server.objects().put::<Pod>(&serde_json::from_value(pod).expect("a Pod"));
    let extender = cluster.extender("one").await;
    let [one, two] =
        ["one", "two"].map(|name| cluster.add_pod(name, limits("1", "gpumem", "3000")));
    assert_eq!(
        bind_pod(&cluster, &extender, &one).await[0]["id"],
        "GPU-a-2",
        "the other GPUs are full"
    );
    let whole = cluster.add_pod("whole", json!({"nvidia.com/gpu": "1"}));
    assert!(extender.filter(&whole, &["a"]).await.0.is_empty(), "each GPU is shared");
    assert_eq!(bind_pod(&cluster, &extender, &two).await[0]["id"], "GPU-a-2");
    extender.stop().await;
}
