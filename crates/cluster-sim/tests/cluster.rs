//! Allocation and release of a pod's devices.

use k8s_openapi::api::{
    core::v1::Pod,
    resource::v1::{DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice},
};
use serde_json::{Value, json};
use windlass_cluster_sim::{
    api::Object,
    cluster::{Cluster, SchedulingError},
};

fn typed<T: Object>(document: Value) -> T {
    serde_json::from_value(document).expect("a document")
}

/// Cluster with two nodes of a GPU each, a class for them and a template.
fn cluster() -> Cluster {
    let cluster = Cluster::start();
    let objects = cluster.objects();
    for node in ["n1", "n2"] {
        cluster.add_node(node);
        let slice: ResourceSlice = typed(json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
            "metadata": {"name": format!("{node}-gpus")},
            "spec": {
                "driver": "d.com", "nodeName": node, "devices": [{"name": "gpu-0"}],
                "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            },
        }));
        objects.create(&slice).expect("created");
    }
    let class: DeviceClass = typed(json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu"},
        "spec": {"extendedResourceName": "d.com/gpu"},
    }));
    objects.create(&class).expect("created");
    let template: ResourceClaimTemplate = typed(json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
        "metadata": {"name": "one", "namespace": "default"},
        "spec": {"spec": {"devices": {"requests": [
            {"name": "gpu", "exactly": {"deviceClassName": "gpu"}},
        ]}}},
    }));
    objects.create(&template).expect("created");
    cluster
}

fn pod(name: &str, claims: &Value, limits: &Value) -> Pod {
    typed(json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "resourceClaims": claims,
            "containers": [{"name": "main", "resources": {"requests": limits}}],
        },
    }))
}

fn from_template(name: &str) -> Pod {
    let claims = json!([{"name": "gpu", "resourceClaimTemplateName": "one"}]);
    pod(name, &claims, &json!({}))
}

fn node(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

#[tokio::test]
async fn pods_with_templates_get_devices_until_none_is_free() {
    let cluster = cluster();
    let first = cluster.schedule(&from_template("p1")).expect("a node");
    assert_eq!(node(&first.pod), Some("n1"));
    let claim = &first.claims[0];
    let name = claim.metadata.name.as_deref().expect("a name");
    assert!(name.starts_with("p1-gpu-"), "{name}");
    let status = claim.status.as_ref().expect("a status");
    let consumers = status.reserved_for.as_ref().expect("reserved");
    assert_eq!(Some(&consumers[0].uid), first.pod.metadata.uid.as_ref());
    let names =
        first.pod.status.as_ref().and_then(|status| status.resource_claim_statuses.as_ref());
    assert_eq!(names.expect("statuses")[0].resource_claim_name.as_deref(), Some(name));

    let second = cluster.schedule(&from_template("p2")).expect("a node");
    assert_eq!(node(&second.pod), Some("n2"));
    match cluster.schedule(&from_template("p3")) {
        Err(SchedulingError::NoNode { reasons, .. }) => {
            let line =
                |node| format!("{node}: request gpu found 0 of 1 among 1 devices (1 in use)");
            assert_eq!(reasons, ["n1", "n2"].map(line));
        }
        result => panic!("{result:?}"),
    }
    cluster.delete_pod("default", "p1").expect("deleted");
    let third = cluster.schedule(&from_template("p3")).expect("a node");
    assert_eq!(node(&third.pod), Some("n1"));
    assert_eq!(cluster.objects().list::<ResourceClaim>().len(), 2);
}

#[tokio::test]
async fn a_shared_claim_stays_allocated_until_its_last_pod_is_deleted() {
    let cluster = cluster();
    let claim: ResourceClaim = typed(json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": "shared", "namespace": "default"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}},
    }));
    cluster.objects().create(&claim).expect("created");
    let claims = json!([{"name": "gpu", "resourceClaimName": "shared"}]);
    for name in ["p1", "p2"] {
        let scheduled_pod = cluster.schedule(&pod(name, &claims, &json!({}))).expect("a node");
        assert_eq!(node(&scheduled_pod.pod), Some("n1"));
    }
    let status = |cluster: &Cluster| {
        let claim: ResourceClaim =
            cluster.objects().get("default", "shared").expect("the claim exists");
        claim.status
    };
    let consumers = status(&cluster).and_then(|status| status.reserved_for);
    assert_eq!(consumers.map(|consumers| consumers.len()), Some(2));
    cluster.delete_pod("default", "p1").expect("deleted");
    assert!(status(&cluster).is_some_and(|status| status.allocation.is_some()));
    cluster.delete_pod("default", "p2").expect("deleted");
    assert_eq!(status(&cluster), None);
}

#[tokio::test]
async fn an_extended_resource_of_a_class_becomes_a_claim() {
    let cluster = cluster();
    let pod = pod("p", &json!([]), &json!({"d.com/gpu": "1", "cpu": "1"}));
    let scheduled_pod = cluster.schedule(&pod).expect("a node");
    let status = scheduled_pod.pod.status.and_then(|status| status.extended_resource_claim_status);
    let status = status.expect("a claim for extended resources");
    let claim = &scheduled_pod.claims[0];
    assert_eq!(Some(&status.resource_claim_name), claim.metadata.name.as_ref());
    let mapping = &status.request_mappings[0];
    assert_eq!((&*mapping.container_name, &*mapping.resource_name), ("main", "d.com/gpu"));
    let annotations = claim.metadata.annotations.as_ref().expect("annotations");
    assert_eq!(annotations["resource.kubernetes.io/extended-resource-claim"], "true");
    cluster.delete_pod("default", "p").expect("deleted");
    assert!(cluster.objects().list::<ResourceClaim>().is_empty());
}
