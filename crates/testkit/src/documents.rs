//! Builders of cluster objects for tests of claims.

use k8s_openapi::api::{
    core::v1::Pod,
    resource::v1::{DeviceClass, ResourceClaimTemplate},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Deserialises a document as an object of its type.
pub fn typed<T: DeserializeOwned>(document: Value) -> T {
    serde_json::from_value(document).expect("a document of its type")
}

/// Device class that selects devices by a CEL expression.
pub fn class(name: &str, expression: &str) -> DeviceClass {
    typed(json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }))
}

/// CEL expression that selects the node's devices of a type.
pub fn of_type(of: &str) -> String {
    format!("device.driver == 'windlass.dev' && device.attributes['windlass.dev'].type == '{of}'")
}

/// Claim template that requests these devices.
pub fn template(namespace: &str, name: &str, devices: &Value) -> ResourceClaimTemplate {
    typed(json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": namespace}, "spec": {"spec": {"devices": devices}},
    }))
}

/// Pod whose containers all use one claim, by `resourceClaimName` or `resourceClaimTemplateName`.
pub fn pod_of_claim(
    (namespace, name): (&str, &str),
    containers: &[&str],
    (source, of): (&str, &str),
) -> Pod {
    let resources = json!({"claims": [{"name": "devices"}]});
    let container = |name: &&str| json!({"name": name, "resources": resources});
    let containers: Vec<_> = containers.iter().map(container).collect();
    typed(json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace},
        "spec": {"containers": containers, "resourceClaims": [{"name": "devices", source: of}]},
    }))
}
