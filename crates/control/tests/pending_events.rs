//! Events of pending pods: written once, with the reason of each node and a remedy.

use k8s_openapi::api::{
    core::v1::Pod,
    events::v1::Event,
    resource::v1::{DeviceClass, ResourceClaim},
};
use serde_json::{Value, json};

use crate::rig::{TIMEOUT, TestCluster};

fn object<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("an object of the kind")
}

/// Sets the condition by which kube-scheduler says that it found no node.
fn refuse(cluster: &TestCluster, name: &str, reason: &str, message: &str) {
    let objects = cluster.server.objects();
    let mut pod: Pod = objects.get("default", name).expect("the pod exists");
    pod.status = object(json!({"conditions": [
        {"type": "PodScheduled", "status": "False", "reason": reason, "message": message},
    ]}));
    objects.update_status(&pod).expect("updated");
}

/// Names of the pods with events, and the notes.
fn events(cluster: &TestCluster) -> Vec<(String, String)> {
    let read = |event: Event| {
        assert_eq!(event.reason.as_deref(), Some("DevicesUnavailable"));
        assert_eq!(event.reporting_controller.as_deref(), Some("windlass.dev/extender"));
        let pod = event.regarding.and_then(|it| it.name).expect("a name");
        (pod, event.note.expect("a note"))
    };
    let mut events: Vec<_> = cluster.server.objects().list().into_iter().map(read).collect();
    events.sort();
    events
}

/// The events, once there are this many.
async fn events_when(cluster: &TestCluster, count: usize) -> Vec<(String, String)> {
    let has_enough = |_: &_| Some(events(cluster)).filter(|events| events.len() >= count);
    cluster.server.objects().wait_until(TIMEOUT, has_enough).await.expect("events in time")
}

#[tokio::test]
async fn a_pod_that_no_node_can_serve_has_one_event_with_reasons_and_a_remedy() {
    let cluster = TestCluster::start();
    cluster.add_node("a", 2);
    cluster.add_node("b", 1);
    let gpus = |count: &str| json!({"nvidia.com/gpu": count});
    let holder = cluster.add_pod("holder", gpus("1"));
    let extender = cluster.extender("one").await;
    extender.wait_for_gauge("pods", "1.0").await;
    assert_eq!(extender.bind(&holder, "a").await, "");
    cluster.add_pod("pending", gpus("2"));
    cluster.add_pod("gated", gpus("2"));
    cluster.add_pod("last", gpus("9"));
    refuse(&cluster, "gated", "SchedulingGated", "Scheduling is blocked");
    refuse(&cluster, "pending", "Unschedulable", "0/2 nodes are available");
    // The pods are explained in this order, so the first has no further event once the last has one.
    refuse(&cluster, "pending", "Unschedulable", "0/2 nodes are available: another message");
    refuse(&cluster, "last", "Unschedulable", "0/2 nodes are available");
    let written = events_when(&cluster, 2).await;
    assert_eq!(
        written.iter().map(|(pod, _)| pod.as_str()).collect::<Vec<_>>(),
        ["last", "pending"]
    );
    assert_eq!(
        written[1].1,
        "waits for 2 GPUs of one node: 2 whole GPUs requested, 1 free (nodes: 2). a would have room once pod \
         default/holder is gone"
    );
    extender.stop().await;
}

#[tokio::test]
async fn two_replicas_and_a_restarted_one_write_an_event_once() {
    let cluster = TestCluster::start();
    cluster.add_node("a", 1);
    let (one, two) = (cluster.extender("one").await, cluster.extender("two").await);
    cluster.add_pod("pending", json!({"nvidia.com/gpu": "2"}));
    refuse(&cluster, "pending", "Unschedulable", "0/1 nodes are available");
    events_when(&cluster, 1).await;
    one.stop().await;
    let restarted = cluster.extender("one").await;
    cluster.add_pod("last", json!({"nvidia.com/gpu": "2"}));
    refuse(&cluster, "last", "Unschedulable", "0/1 nodes are available");
    let pods: Vec<_> = events_when(&cluster, 2).await.into_iter().map(|(pod, _)| pod).collect();
    assert_eq!(pods, ["last", "pending"]);
    restarted.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn a_pod_of_another_namespace_is_not_named() {
    let cluster = TestCluster::start();
    cluster.add_node("a", 1);
    cluster.server.objects().put::<Pod>(&object(json!({
        "metadata": {"name": "holder", "namespace": "other"},
        "spec": {"nodeName": "a", "containers": [
            {"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}},
        ]},
    })));
    cluster.add_pod("pending", json!({"nvidia.com/gpu": "1"}));
    let extender = cluster.extender("one").await;
    refuse(&cluster, "pending", "Unschedulable", "0/1 nodes are available");
    let written = events_when(&cluster, 1).await;
    assert_eq!(written[0].1, "waits for 1 GPU: 1 whole GPU requested, 0 free (nodes: 1)");
    extender.stop().await;
}

#[tokio::test]
async fn a_pod_has_an_event_only_if_its_devices_are_the_reason() {
    let cluster = TestCluster::start();
    cluster.add_node("a", 1);
    cluster.server.objects().put::<DeviceClass>(&object(json!({
        "metadata": {"name": "gpu"}, "spec": {},
    })));
    let request = json!([{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]);
    let allocation = json!({"devices": {"results": [
        {"request": "gpu", "driver": "d.com", "pool": "p", "device": "gpu-0"},
    ]}});
    for (claim, status) in [("allocated", json!({"allocation": allocation})), ("open", json!({}))] {
        cluster.server.objects().put::<ResourceClaim>(&object(json!({
            "metadata": {"name": claim, "namespace": "default"},
            "spec": {"devices": {"requests": request}}, "status": status,
        })));
    }
    // The pods' claims; a pod without one requests the GPU of the node.
    let pods = [
        ("fits", None),
        ("allocated", Some("allocated")),
        ("missing", Some("missing")),
        ("open", Some("open")),
    ];
    for (name, claim) in pods {
        let claims = claim.map(|claim| json!([{"name": "gpus", "resourceClaimName": claim}]));
        let gpus = if claim.is_none() { "1" } else { "0" };
        cluster.server.objects().put::<Pod>(&object(json!({
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"resourceClaims": claims, "containers": [
                {"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": gpus}}},
            ]},
        })));
    }
    let extender = cluster.extender("one").await;
    extender.wait_for_gauge("pods", "4.0").await;
    for (name, _) in pods {
        refuse(&cluster, name, "Unschedulable", "0/1 nodes are available");
    }
    events_when(&cluster, 1).await;
    // A later message is explained after the earlier ones.
    cluster.add_pod("last", json!({"nvidia.com/gpu": "2"}));
    refuse(&cluster, "last", "Unschedulable", "0/1 nodes are available");
    let written = events_when(&cluster, 2).await;
    let [(last, _), (open, note)] = &written[..] else { panic!("{written:?}") };
    assert_eq!((last.as_str(), open.as_str()), ("last", "open"));
    assert_eq!(
        note,
        "waits for the devices of its claims: cannot allocate all claims: request gpu found 0 of 1 among 0 devices (nodes: 1)"
    );
    extender.stop().await;
}
