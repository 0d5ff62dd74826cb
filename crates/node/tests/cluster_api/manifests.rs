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

/// Fields of a document that Kubernetes knows.
pub(crate) fn known_fields(document: &Value) -> Value {
    match document["kind"].as_str().expect("a kind") {
        "ClusterRole" => parsed_as::<ClusterRole>(document),
        "ClusterRoleBinding" => parsed_as::<ClusterRoleBinding>(document),
        "ConfigMap" => parsed_as::<ConfigMap>(document),
        "DaemonSet" => parsed_as::<DaemonSet>(document),
        "Deployment" => parsed_as::<Deployment>(document),
        "DeviceClass" => parsed_as::<DeviceClass>(document),
        "NetworkPolicy" => parsed_as::<NetworkPolicy>(document),
        "Namespace" => parsed_as::<Namespace>(document),
        "Pod" => parsed_as::<Pod>(document),
        "ResourceClaim" => parsed_as::<ResourceClaim>(document),
        "ResourceClaimTemplate" => parsed_as::<ResourceClaimTemplate>(document),
        "ResourceQuota" => parsed_as::<ResourceQuota>(document),
        "Role" => parsed_as::<Role>(document),
        "RoleBinding" => parsed_as::<RoleBinding>(document),
        "ServiceAccount" => parsed_as::<ServiceAccount>(document),
        "ValidatingAdmissionPolicy" => parsed_as::<ValidatingAdmissionPolicy>(document),
        "ValidatingAdmissionPolicyBinding" => {
            parsed_as::<ValidatingAdmissionPolicyBinding>(document)
        }
        other => panic!("unknown kind {other} of a manifest"),
    }
}

fn parsed_as<K: Serialize + DeserializeOwned>(document: &Value) -> Value {
    let object: K = serde_json::from_value(document.clone())
        .unwrap_or_else(|error| panic!("{error} in {document:#}"));
    serde_json::to_value(object).expect("a JSON value")
}

/// The first path of a document that is not among its known fields.
pub(crate) fn first_unknown(document: &Value, known_fields: &Value, path: &str) -> Option<String> {
    match (document, known_fields) {
        (Value::Object(fields), Value::Object(known_fields)) => {
            fields.iter().find_map(|(key, value)| {
                let path = format!("{path}.{key}");
                match known_fields.get(key) {
                    Some(known_fields) => first_unknown(value, known_fields, &path),
                    None => Some(path),
                }
            })
        }
        (Value::Array(items), Value::Array(known_fields)) => items
            .iter()
            .zip(known_fields)
            .find_map(|(item, known_fields)| first_unknown(item, known_fields, path)),
        _ => None,
    }
}

/// Objects of a manifest.
pub(crate) fn documents(path: &Path) -> Vec<Value> {
    let path_text = path.display();
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{path_text}: {error}"));
    let documents = text.split("\n---\n").map(serde_saphyr::from_str);
    documents.map(|result| result.unwrap_or_else(|error| panic!("{path_text}: {error}"))).collect()
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
            assert_eq!(
                first_unknown(&document, &known_fields(&document), ""),
                None,
                "{}",
                path.display()
            );
            count += 1;
        }
    }
    assert!(count > 30, "only {count} documents");
}
