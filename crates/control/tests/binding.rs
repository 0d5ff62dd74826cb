//! Bind: one write per pod, by the replica that holds the Lease, and no device allocated twice.

use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Node, Pod},
};
use serde_json::json;
use windlass_cluster_sim::api::{Effect, Fault};

use crate::rig::TestCluster;

#[tokio::test]
async fn a_pod_is_bound_with_its_devices_in_one_write() {
    let cluster = TestCluster::start();
    cluster.add_node("a", 2);
    let extender = cluster.extender("one").await;
    let memory = |gib: &str| json!({"windlass.dev/gpu-memory": gib});
    let [first, second] = ["first", "second"].map(|name| cluster.add_pod(name, memory("12")));
    let whole = cluster.add_pod("whole", json!({"nvidia.com/gpu": "1"}));
    cluster.server.objects().clear_log();
    for pod in [&first, &second, &whole] {
        assert_eq!(extender.bind(pod, "a").await, "");
    }
    let share = r#"{"devices":[{"id":"GPU-a-0","memoryMib":12288}]}"#;
    assert_eq!(cluster.placement("first"), Some(("a".into(), share.into())));
    assert_eq!(cluster.placement("second"), Some(("a".into(), share.into())));
    let other = r#"{"devices":[{"id":"GPU-a-1"}]}"#;
    assert_eq!(cluster.placement("whole"), Some(("a".into(), other.into())));
    let log = cluster.server.objects().requests();
    let writes =
        log.iter().filter(|request| request.method != "GET" && !request.path.contains("lease"));
    assert_eq!(writes.count(), 3, "one write per pod");
    let late = cluster.add_pod("late", memory("1"));
    let error = extender.bind(&late, "a").await;
    assert!(error.starts_with("node a can no longer serve the pod: "), "{error}");
    extender.stop().await;
}

#[tokio::test]
async fn a_restarted_extender_reads_placements_and_frees_those_of_ended_pods() {
    let cluster = TestCluster::start();
    cluster.add_node("a", 1);
    let extender = cluster.extender("one").await;
    let pod = cluster.add_pod("p", json!({"nvidia.com/gpu": "1"}));
    assert_eq!(extender.bind(&pod, "a").await, "");
    extender.stop().await;
    let extender = cluster.extender("two").await;
    let next = cluster.add_pod("next", json!({"nvidia.com/gpu": "1"}));
    let (_, reasons) = extender.filter(&next, &["a"]).await;
    assert_eq!(reasons["a"], "1 whole GPU requested, 0 free");
    // The phase says that the containers have ended. Until then, even a terminating pod holds its GPU.
    let objects = cluster.server.objects();
    let mut ended: Pod = objects.get("default", "p").expect("the object exists");
    ended.status.get_or_insert_default().phase = Some("Succeeded".to_owned());
    objects.update_status(&ended).expect("updated");
    extender.wait_for_gauge("idle_gpus", "1.0").await;
    assert_eq!(extender.filter(&next, &["a"]).await.0, ["a"]);
    extender.stop().await;
}

#[tokio::test]
async fn after_a_lost_answer_the_pod_is_read_again_and_keeps_its_gpu() {
    let cluster = TestCluster::start();
    cluster.add_node("a", 1);
    let extender = cluster.extender("one").await;
    let pod = cluster.add_pod("p", json!({"nvidia.com/gpu": "1"}));
    let path = "/api/v1/namespaces/default/pods/p/binding";
    cluster.server.inject(Fault::at(path, Effect::DropResponse).times(1));
    assert_eq!(extender.bind(&pod, "a").await, "", "the pod object is bound");
    let next = cluster.add_pod("next", json!({"nvidia.com/gpu": "1"}));
    assert!(extender.filter(&next, &["a"]).await.0.is_empty());
    extender.stop().await;
}

#[tokio::test]
async fn a_refused_bind_frees_its_gpu() {
    let cluster = TestCluster::start();
    cluster.add_node("a", 1);
    let extender = cluster.extender("one").await;
    let pod = cluster.add_pod("p", json!({"nvidia.com/gpu": "1"}));
    let path = "/api/v1/namespaces/default/pods/p/binding";
    cluster.server.inject(Fault::at(path, Effect::Forbid).times(1));
    let error = extender.bind(&pod, "a").await;
    assert!(error.starts_with("the API server refused: "), "{error}");
    let next = cluster.add_pod("next", json!({"nvidia.com/gpu": "1"}));
    assert_eq!(extender.bind(&next, "a").await, "");
    assert!(!extender.bind(&pod, "a").await.is_empty(), "the GPU is the next pod's");
    extender.stop().await;
}

#[tokio::test]
async fn a_pod_with_another_uid_is_not_bound() {
    let cluster = TestCluster::start();
    cluster.add_node("a", 1);
    let extender = cluster.extender("one").await;
    let mut pod = cluster.add_pod("p", json!({"nvidia.com/gpu": "1"}));
    pod["metadata"]["uid"] = "another".into();
    assert_eq!(extender.bind(&pod, "a").await, "pod default/p is gone");
    assert_eq!(cluster.placement("p"), None);
    extender.stop().await;
}

#[tokio::test]
async fn one_replica_binds_and_the_next_takes_over_with_its_placements() {
    let cluster = TestCluster::start();
    cluster.add_node("a", 2);
    let (one, two) = (cluster.extender("one").await, cluster.extender("two").await);
    let [first, second] =
        ["first", "second"].map(|name| cluster.add_pod(name, json!({"nvidia.com/gpu": "1"})));
    assert_eq!(one.bind(&first, "a").await, "");
    assert_eq!(two.bind(&second, "a").await, "replica one binds at present: try again");
    one.stop().await;
    assert_eq!(two.bind(&second, "a").await, "");
    assert_ne!(cluster.placement("first"), cluster.placement("second"));
    let lease: Lease =
        cluster.server.objects().get("default", "windlass-extender").expect("the object exists");
    let spec = lease.spec.expect("a specification");
    assert_eq!((spec.holder_identity.as_deref(), spec.lease_transitions), (Some("two"), Some(2)));
    two.stop().await;
}

#[tokio::test]
async fn annotations_that_a_tenant_forged_take_no_gpu_from_others() {
    let cluster = TestCluster::start();
    cluster.add_node("a", 2);
    let extender = cluster.extender("one").await;
    let forged = json!({"windlass.dev/placement":
        r#"{"devices":[{"id":"GPU-a-0"},{"id":"GPU-a-1"}]}"#});
    let forged_on_b = json!({"windlass.dev/placement":
        r#"{"devices":[{"id":"GPU-b-0"},{"id":"GPU-b-1"}]}"#});
    let thief = cluster.add_pod_with("thief", &json!({"nvidia.com/gpu": "1"}), &forged);
    assert_eq!(extender.bind(&thief, "a").await, "");
    assert_eq!(cluster.placement("thief").expect("bound").1, r#"{"devices":[{"id":"GPU-a-0"}]}"#);
    // A pod bound without the extender: its request counts, and its annotation is ignored.
    cluster.add_node("b", 2);
    let mut bound = cluster.add_pod_with("bound", &json!({"nvidia.com/gpu": "1"}), &forged_on_b);
    bound["spec"]["nodeName"] = "b".into();
    cluster.server.objects().put::<Pod>(&serde_json::from_value(bound).expect("a Pod"));
    extender.wait_for_gauge("idle_gpus", "2.0").await;
    let next = cluster.add_pod("next", json!({"nvidia.com/gpu": "1"}));
    assert_eq!(extender.bind(&next, "b").await, "");
    assert_eq!(cluster.placement("next").expect("bound").1, r#"{"devices":[{"id":"GPU-b-1"}]}"#);
    extender.stop().await;
}

#[tokio::test]
async fn a_bind_with_an_unknown_outcome_keeps_its_gpu_and_is_retried_on_the_same_node() {
    let mut cluster = TestCluster::start();
    cluster.add_node("a", 1);
    cluster.add_node("b", 1);
    let extender = cluster.extender("one").await;
    let [pod, next] =
        ["p", "next"].map(|name| cluster.add_pod(name, json!({"nvidia.com/gpu": "1"})));
    // A bind without devices makes this replica acquire the Lease before the API server goes offline.
    assert_eq!(extender.bind(&cluster.add_pod("first", json!({})), "a").await, "");
    cluster.server.go_offline().await;
    let error = extender.bind(&pod, "a").await;
    assert!(error.starts_with("the API server "), "{error}");
    assert_eq!(extender.filter(&next, &["a", "b"]).await.0, ["b"]);
    let (fit, reasons) = extender.filter(&pod, &["a", "b"]).await;
    assert_eq!(fit, ["a"]);
    let reason = "a bind to node a may have succeeded: the API server is asked";
    assert_eq!(reasons["b"], reason);
    cluster.server.go_online();
    assert_eq!(extender.bind(&pod, "a").await, "");
    assert_eq!(cluster.placement("p").expect("bound").0, "a");
    extender.stop().await;
}

#[tokio::test]
async fn the_index_of_gpushare_is_read_if_gpus_have_no_ids() {
    let cluster = TestCluster::start();
    cluster.server.objects().put::<Node>(
        &serde_json::from_value(json!({
            "metadata": {"name": "a"},
            "status": {"allocatable": {
                "cpu": "64", "memory": "256Gi", "pods": "110",
                "aliyun.com/gpu-count": "2", "aliyun.com/gpu-mem": "30",
            }},
        }))
        .expect("a Node"),
    );
    let extender = cluster.extender("one").await;
    let memory = |gib: &str| json!({"aliyun.com/gpu-mem": gib});
    for (name, gib) in [("first", "8"), ("second", "10"), ("third", "5")] {
        assert_eq!(extender.bind(&cluster.add_pod(name, memory(gib)), "a").await, "");
    }
    cluster.server.objects().delete::<Pod>("default", "first").expect("deleted");
    extender.wait_for_gauge("pods", "2.0").await;
    extender.stop().await;
    let mut free = [15, 15];
    for (name, gib) in [("second", 10), ("third", 5)] {
        let pod: Pod = cluster.server.objects().get("default", name).expect("the object exists");
        let annotations = pod.metadata.annotations.expect("bound");
        let index: usize = annotations["ALIYUN_COM_GPU_MEM_IDX"].parse().expect("an index");
        free[index] -= gib;
    }
    // Another replica knows only from the index how much is free on the GPU with the most free memory.
    let largest = free[0].max(free[1]);
    let extender = cluster.extender("two").await;
    let fits = cluster.add_pod("fits", memory(&largest.to_string()));
    assert_eq!(extender.filter(&fits, &["a"]).await.0, ["a"], "{free:?}");
    let more = cluster.add_pod("more", memory(&(largest + 1).to_string()));
    assert!(extender.filter(&more, &["a"]).await.0.is_empty(), "{free:?}");
    extender.stop().await;
}

#[tokio::test]
async fn a_share_of_another_scheduler_counts_on_a_healthy_gpu() {
    let cluster = TestCluster::start();
    let failed = json!({"id": "GPU-0", "model": "A10", "memoryMib": 24576, "obstacle": "XID 79"});
    let healthy = json!({"id": "GPU-1", "model": "A10", "memoryMib": 24576});
    let devices = json!({"devices": [failed, healthy]}).to_string();
    let node = json!({
        "metadata": {"name": "a", "annotations": {"windlass.dev/devices": devices}},
        "status": {"allocatable": {"cpu": "64", "memory": "256Gi", "pods": "110"}},
    });
    cluster.server.objects().put::<Node>(&serde_json::from_value(node).expect("a Node"));
    let share = json!({"metadata": {"name": "share", "namespace": "default"}, "spec": {
        "nodeName": "a",
        "containers": [{"name": "c", "image": "i",
                        "resources": {"limits": {"windlass.dev/gpu-memory": "12"}}}],
    }});
    cluster.server.objects().put::<Pod>(&serde_json::from_value(share).expect("a Pod"));
    let extender = cluster.extender("one").await;
    let whole = cluster.add_pod("whole", json!({"nvidia.com/gpu": "1"}));
    assert!(
        extender.filter(&whole, &["a"]).await.0.is_empty(),
        "the share occupies the healthy GPU"
    );
    let rest = cluster.add_pod("rest", json!({"windlass.dev/gpu-memory": "12"}));
    assert_eq!(extender.filter(&rest, &["a"]).await.0, ["a"]);
    extender.stop().await;
}

#[tokio::test]
async fn an_extender_without_a_right_is_not_ready_and_says_which() {
    let cluster = TestCluster::start();
    cluster.server.inject(Fault::at("/binding", Effect::Forbid));
    let extender = cluster.start_extender("one").await;
    let message = "the account may not create pods/binding: apply deploy/scheduler/extender.yaml\n";
    extender.wait_until("/readyz", |answer| *answer == (503, message.to_owned())).await;
    cluster.server.clear_faults();
    extender.wait_until("/readyz", |(code, _)| *code == 200).await;
    extender.stop().await;
}
