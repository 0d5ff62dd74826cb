//! Pods and claims as documents.

use k8s_openapi::api::{
    core::v1::{Namespace, Pod},
    resource::v1::{DeviceClass, ResourceClaim},
};
use serde_json::{Value, json};
pub(crate) use windlass_testkit::{claim_template, from_json, pod_of_claim as pod};

/// Namespace of all objects without admin access.
pub(crate) const NAMESPACE: &str = "default";

/// The namespace in which claims may have admin access.
pub(crate) const ADMIN_NAMESPACE: &str = "admins";

/// Extended resource of the GPU class.
pub(crate) const EXTENDED_RESOURCE: &str = "example.com/gpu";

/// The class `gpu`.
pub(crate) fn class() -> DeviceClass {
    let expression = "device.attributes['windlass.dev'].type == 'gpu'";
    from_json(json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu"},
        "spec": {"extendedResourceName": EXTENDED_RESOURCE, "selectors": [{"cel": {"expression": expression}}]},
    }))
}

pub(crate) fn admins() -> Namespace {
    let labels = json!({"resource.kubernetes.io/admin-access": "true"});
    from_json(json!({
        "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": ADMIN_NAMESPACE, "labels": labels},
    }))
}

/// Request for some GPUs.
pub(crate) fn gpus(count: usize) -> Value {
    json!({"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu", "count": count}}]})
}

pub(crate) fn claim(name: &str, devices: &Value) -> ResourceClaim {
    from_json(json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": NAMESPACE}, "spec": {"devices": devices},
    }))
}

/// A pod with a limit and no claim.
pub(crate) fn with_limit(name: &str, resource: &str) -> Pod {
    from_json(json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"containers": [{"name": "main", "resources": {"limits": {resource: "1"}}}]},
    }))
}
