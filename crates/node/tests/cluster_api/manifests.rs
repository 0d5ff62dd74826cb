//! The manifests in `deploy/`: Kubernetes knows every field in its place.

use std::{fs, path::Path};

use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    apps::v1::{DaemonSet, Deployment},
    core::v1::{ConfigMap, Namespace, Pod, ResourceQuota, ServiceAccount},
    networking::v1::NetworkPolicy,
    rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding},
    resource::v1::{DeviceClass, ResourceClaim, ResourceClaimTemplate},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

/// Fields of a document that Kubernetes keeps.
pub(crate) fn kept(document: &Value) -> Value {
    match document["kind"].as_str().expect("a kind") {
        "ClusterRole" => through::<ClusterRole>(document),
        "ClusterRoleBinding" => through::<ClusterRoleBinding>(document),
        "ConfigMap" => through::<ConfigMap>(document),
        "DaemonSet" => through::<DaemonSet>(document),
        "Deployment" => through::<Deployment>(document),
        "DeviceClass" => through::<DeviceClass>(document),
        "NetworkPolicy" => through::<NetworkPolicy>(document),
        "Namespace" => through::<Namespace>(document),
        "Pod" => through::<Pod>(document),
        "ResourceClaim" => through::<ResourceClaim>(document),
        "ResourceClaimTemplate" => through::<ResourceClaimTemplate>(document),
        "ResourceQuota" => through::<ResourceQuota>(document),
        "Role" => through::<Role>(document),
        "RoleBinding" => through::<RoleBinding>(document),
        "ServiceAccount" => through::<ServiceAccount>(document),
        "ValidatingAdmissionPolicy" => through::<ValidatingAdmissionPolicy>(document),
        "ValidatingAdmissionPolicyBinding" => through::<ValidatingAdmissionPolicyBinding>(document),
        other => panic!("a manifest of kind {other}"),
    }
}

fn through<K: Serialize + DeserializeOwned>(document: &Value) -> Value {
    let object: K = serde_json::from_value(document.clone())
        .unwrap_or_else(|error| panic!("{error} in {document:#}"));
    serde_json::to_value(object).expect("plain")
}

/// The first path that is in a document, and not among its kept fields.
pub(crate) fn lost(document: &Value, kept: &Value, path: &str) -> Option<String> {
    match (document, kept) {
        (Value::Object(fields), Value::Object(kept)) => fields.iter().find_map(|(key, value)| {
            let path = format!("{path}.{key}");
            match kept.get(key) {
                Some(kept) => lost(value, kept, &path),
                None => Some(path),
            }
        }),
        (Value::Array(items), Value::Array(kept)) => {
            items.iter().zip(kept).find_map(|(item, kept)| lost(item, kept, path))
        }
        _ => None,
    }
}

/// Objects of a manifest.
pub(crate) fn documents(path: &Path) -> Vec<Value> {
    let shown = path.display();
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{shown}: {error}"));
    let documents = text.split("\n---\n").map(serde_saphyr::from_str);
    documents.map(|read| read.unwrap_or_else(|error| panic!("{shown}: {error}"))).collect()
}

#[test]
fn every_manifest_has_valid_fields() {
    let deploy = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy"));
    let folders = [deploy.to_owned(), deploy.join("examples")];
    let files = folders.iter().flat_map(|folder| fs::read_dir(folder).expect("a folder"));
    let files = files.map(|entry| entry.expect("an entry").path());
    let mut count = 0;
    for path in files.filter(|path| path.extension().is_some_and(|it| it == "yaml")) {
        for document in documents(&path) {
            assert_eq!(lost(&document, &kept(&document), ""), None, "{}", path.display());
            count += 1;
        }
    }
    assert!(count > 30, "only {count} documents");
}
