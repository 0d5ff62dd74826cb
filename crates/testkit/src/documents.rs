//! Builders of Kubernetes objects for tests of resource claims.

use k8s_openapi::api::{
    core::v1::Pod,
    resource::v1::{DeviceClass, ResourceClaimTemplate},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Deserialises a JSON document as a Kubernetes object.
pub fn from_json<T: DeserializeOwned>(document: Value) -> T {
    serde_json::from_value(document).expect("a valid document")
}

/// Device class that selects devices by a CEL expression.
pub fn device_class(name: &str, expression: &str) -> DeviceClass {
    from_json(json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }))
}

/// CEL expression that selects Windlass's devices of a type.
pub fn type_selector(kind: &str) -> String {
    format!("device.driver == 'windlass.dev' && device.attributes['windlass.dev'].type == '{kind}'")
}

/// Claim template with these device requests (`spec.devices` of a claim).
pub fn claim_template(namespace: &str, name: &str, devices: &Value) -> ResourceClaimTemplate {
    from_json(json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": namespace}, "spec": {"spec": {"devices": devices}},
    }))
}

/// Pod whose containers all use one claim. The last pair is `resourceClaimName` or `resourceClaimTemplateName`, and the
/// name.
pub fn pod_of_claim(
    (namespace, name): (&str, &str),
    containers: &[&str],
    (source, source_name): (&str, &str),
) -> Pod {
    let resources = json!({"claims": [{"name": "devices"}]});
    let container = |name: &&str| json!({"name": name, "resources": resources});
    let containers: Vec<_> = containers.iter().map(container).collect();
    from_json(json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "containers": containers,
            "resourceClaims": [{"name": "devices", source: source_name}],
        },
    }))
}
