//! Pods and claims as documents.

use k8s_openapi::api::{
    core::v1::{Namespace, Pod},
    resource::v1::{DeviceClass, ResourceClaim, ResourceClaimTemplate},
};
use serde_json::{Value, json};
use windlass_cluster_sim::api::Object;

/// Where everything is that is not for administrators.
pub(crate) const SPACE: &str = "default";

/// The namespace in which claims may have admin access.
pub(crate) const ADMINS: &str = "admins";

/// What the class of GPUs answers for.
pub(crate) const EXTENDED: &str = "example.com/gpu";

pub(crate) fn typed<T: Object>(document: Value) -> T {
    serde_json::from_value(document).expect("a document")
}

/// The class `gpu`.
pub(crate) fn class() -> DeviceClass {
    let expression = "device.attributes['windlass.dev'].type == 'gpu'";
    typed(json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu"},
        "spec": {"extendedResourceName": EXTENDED, "selectors": [{"cel": {"expression": expression}}]},
    }))
}

pub(crate) fn admins() -> Namespace {
    let labels = json!({"resource.kubernetes.io/admin-access": "true"});
    typed(json!({
        "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": ADMINS, "labels": labels},
    }))
}

/// What is asked of devices: some GPUs.
pub(crate) fn gpus(count: usize) -> Value {
    json!({"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu", "count": count}}]})
}

pub(crate) fn template(space: &str, name: &str, devices: &Value) -> ResourceClaimTemplate {
    typed(json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": space}, "spec": {"spec": {"devices": devices}},
    }))
}

pub(crate) fn claim(name: &str, devices: &Value) -> ResourceClaim {
    typed(json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": SPACE}, "spec": {"devices": devices},
    }))
}

/// A pod whose containers use all of one claim, `resourceClaimName` or `resourceClaimTemplateName`.
pub(crate) fn pod(
    (space, name): (&str, &str),
    containers: &[&str],
    (source, of): (&str, &str),
) -> Pod {
    let resources = json!({"claims": [{"name": "devices"}]});
    let container = |name: &&str| json!({"name": name, "resources": resources});
    let containers: Vec<_> = containers.iter().map(container).collect();
    typed(json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": space},
        "spec": {"containers": containers, "resourceClaims": [{"name": "devices", source: of}]},
    }))
}

/// A pod with a limit and no claim.
pub(crate) fn with_limit(name: &str, resource: &str) -> Pod {
    typed(json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": SPACE},
        "spec": {"containers": [{"name": "main", "resources": {"limits": {resource: "1"}}}]},
    }))
}
