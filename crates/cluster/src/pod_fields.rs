//! The fields of a pod that the agent reads.
//!
//! A deserialiser for whole pods would add 0.3 MB to the agent's program: every kind of volume, probe and affinity.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    core::{ApiResource, DynamicObject},
};
use serde::Deserialize;

/// Specification and status of a pod. Absent lists are empty.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PodFields {
    pub(crate) spec: SpecFields,
    pub(crate) status: StatusFields,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct SpecFields {
    pub(crate) init_containers: Vec<ContainerFields>,
    pub(crate) containers: Vec<ContainerFields>,
    pub(crate) resource_claims: Vec<ClaimFields>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ContainerFields {
    pub(crate) restart_policy: Option<String>,
    pub(crate) resources: ResourceFields,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ResourceFields {
    pub(crate) requests: BTreeMap<String, String>,
    pub(crate) limits: BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(clippy::struct_field_names, reason = "the names are those of the API")]
pub(crate) struct StatusFields {
    pub(crate) container_statuses: Vec<ContainerStatusFields>,
    pub(crate) init_container_statuses: Vec<ContainerStatusFields>,
    pub(crate) ephemeral_container_statuses: Vec<ContainerStatusFields>,
    /// Claims that were created from templates.
    pub(crate) resource_claim_statuses: Vec<ClaimFields>,
}

/// A claim of the pod, in its specification or in its status.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ClaimFields {
    pub(crate) resource_claim_name: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ContainerStatusFields {
    pub(crate) name: String,
    /// `containerd://ID`, once the container was started.
    #[serde(rename = "containerID")]
    pub(crate) container_id: Option<String>,
}

/// Pods of a namespace, as objects whose fields are read one by one.
pub(crate) fn pods(client: kube::Client, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client, namespace, &ApiResource::erase::<Pod>(&()))
}
