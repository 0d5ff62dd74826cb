//! Prioritize for pods with claims: ranks by the devices that kube-scheduler would allocate on each node.

use k8s_openapi::api::{
    core::v1::{Node, Pod},
    resource::v1::{DeviceClass, ResourceClaim, ResourceSlice},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::rig::TestCluster;

fn object<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("an object of the kind")
}

/// Adds a node whose slice has GPUs of 80 GiB, which may be shared by memory.
fn add_node(cluster: &TestCluster, name: &str, gpus: usize) {
    let gpu = |n: usize| {
        json!({
            "name": format!("gpu-{n}"), "allowMultipleAllocations": true,
            "attributes": {
                "windlass.dev/type": {"string": "gpu"},
                "gpu.nvidia.com/productName": {"string": "NVIDIA H100 80GB HBM3"},
            },
            "capacity": {"gpu.nvidia.com/memory": {"value": "80Gi", "requestPolicy": {
                "default": "80Gi", "validRange": {"min": "1Gi", "step": "1Gi"},
            }}},
        })
    };
    let devices: Vec<_> = (0..gpus).map(gpu).collect();
    let objects = cluster.server.objects();
    objects.put::<ResourceSlice>(&object(json!({
        "metadata": {"name": format!("{name}-slice")},
        "spec": {
            "driver": "windlass.dev", "nodeName": name, "devices": devices,
            "pool": {"name": format!("{name}/nvidia"), "generation": 1, "resourceSliceCount": 1},
        },
    })));
    objects.put::<Node>(&object(json!({
        "metadata": {"name": name},
        "status": {"allocatable": {"cpu": "64", "memory": "256Gi", "pods": "110"}},
    })));
}

/// Adds a pod with a claim, and returns it as kube-scheduler sends it.
fn add_pod(cluster: &TestCluster, name: &str, exactly: Value) -> Value {
    let objects = cluster.server.objects();
    let mut exactly = exactly;
    exactly["deviceClassName"] = "windlass-gpu".into();
    objects.put::<ResourceClaim>(&object(json!({
        "metadata": {"name": format!("{name}-claim"), "namespace": "default"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    })));
    let pod = objects.put::<Pod>(&object(json!({
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "containers": [{"name": "c", "image": "i"}],
            "resourceClaims": [{"name": "gpus", "resourceClaimName": format!("{name}-claim")}],
        },
    })));
    json!(pod)
}

/// Allocates a device to the claim of a pod, as kube-scheduler would.
fn allocate(cluster: &TestCluster, pod: &str, node: &str, result: &Value) {
    let objects = cluster.server.objects();
    let mut claim: ResourceClaim =
        objects.get("default", &format!("{pod}-claim")).expect("the claim exists");
    let mut allocation_result =
        json!({"request": "gpu", "driver": "windlass.dev", "pool": format!("{node}/nvidia")});
    allocation_result
        .as_object_mut()
        .expect("a map")
        .extend(result.as_object().cloned().expect("a map"));
    claim.status = object(json!({"allocation": {"devices": {"results": [allocation_result]}}}));
    objects.put(&claim);
}

#[tokio::test]
async fn the_node_that_a_claim_fragments_least_ranks_first() {
    let cluster = TestCluster::start();
    cluster.server.objects().put::<DeviceClass>(&object(json!({
        "metadata": {"name": "windlass-gpu"}, "spec": {},
    })));
    for node in ["a", "b", "c"] {
        add_node(&cluster, node, 4);
    }
    let one = add_pod(&cluster, "one", json!({}));
    allocate(&cluster, "one", "b", &json!({"device": "gpu-0"}));
    let share = json!({"capacity": {"requests": {"gpu.nvidia.com/memory": "20Gi"}}});
    add_pod(&cluster, "share", share.clone());
    let consumed = json!({
        "device": "gpu-0", "shareID": "6b9e5c1e-0000-4000-8000-000000000001",
        "consumedCapacity": {"gpu.nvidia.com/memory": "20Gi"},
    });
    allocate(&cluster, "share", "c", &consumed);
    let extender = cluster.extender("one").await;
    // Of 12 GPUs, one is allocated, and so is a quarter of another: 20 of 80 GiB.
    extender.wait_for_gauge("idle_gpus", "10.75").await;

    let small = add_pod(&cluster, "small", json!({}));
    let large = add_pod(&cluster, "large", json!({"count": 4}));
    let second_share = add_pod(&cluster, "second-share", share);
    let nodes = ["a", "b", "c"];
    extender.wait_for_gauge("claims", "5.0").await;
    assert_eq!(extender.ranked(&second_share, &nodes).await[0], "c", "a GPU of c is shared");
    assert_eq!(extender.ranked(&large, &nodes).await, ["a"], "only a has four free GPUs");
    let best = extender.ranked(&small, &nodes).await.remove(0);
    assert_ne!(best, "a", "a keeps its four free GPUs");
    // kube-scheduler allocates the first free GPU of the best node for one pod, and for another pod a later one.
    allocate(&cluster, "small", &best, &json!({"device": "gpu-1"}));
    allocate(&cluster, "large", "a", &json!({"device": "gpu-3"}));
    for (is_right, count) in [("true", 1), ("false", 1)] {
        let line = format!("predicted_claims_total{{is_right=\"{is_right}\"}}");
        extender.wait_for_gauge(&line, &count.to_string()).await;
    }
    assert!(extender.ranked(&one, &nodes).await.is_empty(), "the pod has its device already");
    extender.stop().await;
}
