//! Filter, prioritize and preempt: verbs that change no state.

use serde_json::json;

use crate::rig::TestCluster;

#[tokio::test]
async fn a_refused_node_has_the_first_reason() {
    let cluster = TestCluster::start();
    cluster.add_node("a", 1);
    cluster.add_node("b", 2);
    let extender = cluster.extender("one").await;
    let nodes = ["a", "b", "unknown"];
    let two = cluster.add_pod("two", json!({"nvidia.com/gpu": "2"}));
    let (fit, reasons) = extender.filter(&two, &nodes).await;
    assert_eq!(fit, ["b"]);
    assert_eq!(reasons["a"], "2 whole GPUs requested, 1 free");
    assert!(reasons["unknown"].as_str().expect("a reason").contains("is unknown to Windlass"));
    let large = cluster.add_pod("large", json!({"windlass.dev/gpu-memory": "25"}));
    let (fit, reasons) = extender.filter(&large, &nodes[..2]).await;
    assert!(fit.is_empty());
    let reason = "0 thousandths and 25600 MiB of one GPU requested; no GPU has as much free";
    assert_eq!(reasons["a"], reason);
    let wrong = cluster.add_pod("wrong", json!({"windlass.dev/gpu-compute": "101"}));
    let (_, reasons) = extender.filter(&wrong, &nodes[..1]).await;
    let reason =
        "unresolvable: windlass.dev/gpu-compute: 101 is more than the 100 percent of a GPU";
    assert_eq!(reasons["a"], reason);
    let annotations = json!({"nvidia.com/use-gputype": "H100"});
    let picky = cluster.add_pod_with("picky", &json!({"nvidia.com/gpu": "1"}), &annotations);
    let (_, reasons) = extender.filter(&picky, &nodes[..1]).await;
    assert_eq!(reasons["a"], "unresolvable: no GPU of a requested product");
    extender.stop().await;
}

#[tokio::test]
async fn scores_differ_and_a_share_prefers_a_shared_gpu() {
    let cluster = TestCluster::start();
    for node in ["a", "b", "c"] {
        cluster.add_node(node, 2);
    }
    let extender = cluster.extender("one").await;
    let first = cluster.add_pod("first", json!({"windlass.dev/gpu-memory": "8"}));
    assert_eq!(extender.bind(&first, "b").await, "");
    let second = cluster.add_pod("second", json!({"windlass.dev/gpu-memory": "8"}));
    let nodes = ["a", "b", "c"];
    let ranked = extender.ranked(&second, &nodes).await;
    assert_eq!(ranked, ["b", "a", "c"]);
    assert_eq!(extender.ranked(&second, &nodes).await, ranked);
    extender.stop().await;
}

#[tokio::test]
async fn a_node_is_offered_for_preemption_if_the_pod_fits_without_pods_of_lower_priority() {
    let cluster = TestCluster::start();
    cluster.add_node("a", 1);
    cluster.add_node("b", 2);
    let extender = cluster.extender("one").await;
    let share = |gib: &str| json!({"windlass.dev/gpu-memory": gib});
    let victim = cluster.add_pod("victim", json!({"nvidia.com/gpu": "1"}));
    let [first, second] = ["first", "second"].map(|name| cluster.add_pod(name, share("12")));
    let third = cluster.add_pod("third", share("20"));
    assert_eq!(extender.bind(&victim, "a").await, "");
    for pod in [&first, &second, &third] {
        assert_eq!(extender.bind(pod, "b").await, "");
    }
    let mut urgent = cluster.add_pod("urgent", share("24"));
    urgent["spec"]["priority"] = 10.into();
    let uid = |pod: &serde_json::Value| json!({"UID": pod["metadata"]["uid"]});
    let preempt = async |urgent: &serde_json::Value, victims: serde_json::Value| {
        let args = json!({"Pod": urgent, "NodeNameToMetaVictims": victims});
        extender.call("preempt", &args).await["NodeNameToMetaVictims"].clone()
    };
    let meta_victims = |pods: serde_json::Value| json!({"Pods": pods, "NumPDBViolations": 0});
    // The sum of 12 GiB of `first` and the free memory would suffice, but it is on two GPUs.
    let request =
        json!({"a": meta_victims(json!([uid(&victim)])), "b": meta_victims(json!([uid(&first)]))});
    let answer = preempt(&urgent, request).await;
    assert_eq!(answer["a"], meta_victims(json!([uid(&victim)])));
    let pods = answer["b"]["Pods"].as_array().expect("pods");
    assert_eq!(pods.len(), 2, "one GPU is emptied: {answer}");
    urgent["spec"]["priority"] = 0.into();
    let answer = preempt(&urgent, json!({"b": meta_victims(json!([]))})).await;
    assert_eq!(answer, json!({}), "no pod has a lower priority");
    extender.stop().await;
}

#[tokio::test]
async fn bad_requests_are_refused_with_their_reason() {
    let cluster = TestCluster::start();
    cluster.add_node("a", 1);
    let extender = cluster.extender("one").await;
    let (code, text) = extender.post("filter", "{").await;
    assert_eq!(code, 400);
    assert!(text.starts_with("no request of kube-scheduler's extender: EOF"), "{text}");
    let (code, text) = extender.post("filter", &" ".repeat(10 << 20)).await;
    assert_eq!((code, text.as_str()), (413, "the request has more than 8388608 bytes\n"));
    assert_eq!(extender.get("/nothing").await.0, 404);
    let pod = cluster.add_pod("p", json!({"nvidia.com/gpu": "1"}));
    let without_names = extender.call("filter", &json!({"Pod": pod, "Nodes": {"items": []}})).await;
    assert!(
        without_names["Error"].as_str().expect("text").contains("nodeCacheCapable"),
        "{without_names}"
    );
    let names: Vec<_> = (0..15_000).map(|n| format!("unknown-{n}")).chain(["a".into()]).collect();
    let with_many_names = extender.call("filter", &json!({"Pod": pod, "NodeNames": names})).await;
    assert_eq!(with_many_names["NodeNames"], json!(["a"]));
    assert_eq!(with_many_names["FailedNodes"].as_object().map(serde_json::Map::len), Some(15_000));
    extender.stop().await;
}

#[tokio::test]
async fn the_inspect_document_of_gpushare_shows_the_holders_of_each_gpu() {
    let cluster = TestCluster::start();
    cluster.add_node("a", 2);
    let extender = cluster.extender("one").await;
    let pod = cluster.add_pod("p", json!({"aliyun.com/gpu-mem": "8"}));
    assert_eq!(extender.bind(&pod, "a").await, "");
    let (code, text) = extender.get("/gpushare-scheduler/inspect/a").await;
    assert_eq!(code, 200);
    let used = json!({"name": "p", "namespace": "default", "usedGPU": 8});
    let expected = json!({"nodes": [{"name": "a", "totalGPU": 48, "usedGPU": 8, "devs": [
        {"id": 0, "totalGPU": 24, "usedGPU": 8, "pods": [used]},
        {"id": 1, "totalGPU": 24, "usedGPU": 0, "pods": []},
    ]}]});
    assert_eq!(serde_json::from_str::<serde_json::Value>(&text).expect("JSON"), expected);
    extender.stop().await;
}
