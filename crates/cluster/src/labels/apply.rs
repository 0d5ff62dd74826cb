//! Requests for labels and annotations, by server-side apply: the API server tracks the fields that the agent owns.

use k8s_openapi::{
    api::core::v1::{Node, Pod},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
    core::{ApiResource, DynamicObject, Status},
};
use serde_json::{Value, json};
use windlass_config::PodIdentity;

use super::Labels;
use crate::{Client, ClusterError, FIELD_MANAGER, client::Connection};

/// Target of labels or annotations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Node,
    /// A `NodeFeature` object for node-feature-discovery.
    NodeFeature,
    /// Annotations of the Node.
    Annotations,
}

/// Field manager of annotations. It differs from the manager of labels, because an apply removes the manager's fields
/// that it does not contain.
const ANNOTATION_MANAGER: &str = "windlass-devices";

/// A client and its connection, for one request.
#[derive(Clone, Copy)]
struct LabelApi<'a> {
    client: &'a Client,
    connection: &'a Connection,
}

// === impl Target ===

impl Target {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Node => "Node",
            Self::NodeFeature => "NodeFeature",
            Self::Annotations => "Node's annotations",
        }
    }
}

/// Applies exactly these labels to a target. Returns the omitted keys, which other writers own.
pub(super) async fn apply(
    client: &Client,
    connection: &Connection,
    target: Target,
    labels: &Labels,
) -> Result<Vec<String>, ClusterError> {
    let api = LabelApi { client, connection };
    match target {
        Target::Node => api.apply_to_node(labels).await,
        Target::NodeFeature => api.apply_node_feature(labels).await.map(|()| Vec::new()),
        Target::Annotations => api.annotate_node(labels).await.map(|()| Vec::new()),
    }
}

/// Removes the agent's labels from a target.
pub(super) async fn remove(
    client: &Client,
    connection: &Connection,
    target: Target,
) -> Result<(), ClusterError> {
    let api = LabelApi { client, connection };
    match target {
        Target::Node => api.apply_to_node(&Labels::new()).await.map(drop),
        Target::NodeFeature => api.delete_node_feature().await,
        Target::Annotations => api.annotate_node(&Labels::new()).await,
    }
}

// === impl LabelApi ===

impl LabelApi<'_> {
    async fn apply_to_node(self, labels: &Labels) -> Result<Vec<String>, ClusterError> {
        let uid = self.node_uid().await?;
        let refusal = match self.patch_node(&uid, labels).await {
            Ok(()) => return Ok(Vec::new()),
            Err(error) => error,
        };
        let conflicting = refusal.status().map(conflicting_labels).unwrap_or_default();
        if conflicting.is_empty() {
            return Err(refusal);
        }
        let mut accepted = labels.clone();
        accepted.retain(|key, _| !conflicting.contains(key));
        self.patch_node(&uid, &accepted).await.map(|()| conflicting)
    }

    /// UID of the Node. An apply without a UID would create a missing Node, which only a kubelet may do. With the UID
    /// in the document the API server refuses.
    async fn node_uid(self) -> Result<String, ClusterError> {
        let node = self.client.node();
        let nodes: Api<Node> = Api::all(self.connection.kube.clone());
        let context = || format!("cannot read Node {node}");
        let node_metadata = self.connection.call(context, nodes.get_metadata(node)).await?;
        Ok(node_metadata.metadata.uid.unwrap_or_default())
    }

    async fn annotate_node(self, annotations: &Labels) -> Result<(), ClusterError> {
        let document =
            node_document(self.client.node(), &self.node_uid().await?, "annotations", annotations);
        self.apply_node(&PatchParams::apply(ANNOTATION_MANAGER).force(), &document).await
    }

    async fn patch_node(self, uid: &str, labels: &Labels) -> Result<(), ClusterError> {
        let document = node_document(self.client.node(), uid, "labels", labels);
        self.apply_node(&PatchParams::apply(FIELD_MANAGER), &document).await
    }

    async fn apply_node(self, params: &PatchParams, document: &Value) -> Result<(), ClusterError> {
        let node = self.client.node();
        let nodes: Api<Node> = Api::all(self.connection.kube.clone());
        let document = Patch::Apply(document);
        let request = nodes.patch_metadata(node, params, &document);
        let context = || format!("cannot write metadata of Node {node}");
        self.connection.call(context, request).await.map(drop)
    }

    async fn apply_node_feature(self, labels: &Labels) -> Result<(), ClusterError> {
        let namespace = self.client.namespace(self.connection);
        let name = node_feature_name(self.client.node());
        let owners = self.owners(&namespace).await;
        let document = node_feature_document(self.client.node(), labels, &owners);
        // The agent owns the whole object: it overwrites changes by others.
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let document = Patch::Apply(&document);
        let objects = self.node_features(&namespace);
        let request = objects.patch_metadata(&name, &params, &document);
        let context = || format!("cannot write NodeFeature {namespace}/{name}");
        self.connection.call(context, request).await.map(drop)
    }

    async fn delete_node_feature(self) -> Result<(), ClusterError> {
        let namespace = self.client.namespace(self.connection);
        let name = node_feature_name(self.client.node());
        let (objects, params) = (self.node_features(&namespace), DeleteParams::default());
        let context = || format!("cannot delete NodeFeature {namespace}/{name}");
        match self.connection.call(context, objects.delete(&name, &params)).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }

    fn node_features(self, namespace: &str) -> Api<DynamicObject> {
        let kind = ApiResource {
            group: "nfd.k8s-sigs.io".to_owned(),
            version: "v1alpha1".to_owned(),
            api_version: "nfd.k8s-sigs.io/v1alpha1".to_owned(),
            kind: "NodeFeature".to_owned(),
            plural: "nodefeatures".to_owned(),
        };
        Api::namespaced_with(self.connection.kube.clone(), namespace, &kind)
    }

    /// Owners of the object: the pod, and the `DaemonSet` that controls it. With the pod alone, each update
    /// of the agent would delete the object and its labels.
    async fn owners(self, namespace: &str) -> Vec<OwnerReference> {
        let Some(pod) = self.client.pod_in(namespace) else { return Vec::new() };
        let pods: Api<Pod> = Api::namespaced(self.connection.kube.clone(), namespace);
        let context = || format!("cannot read Pod {namespace}/{}", pod.name);
        let pod_metadata = self.connection.call(context, pods.get_metadata(&pod.name)).await;
        let pod_metadata = pod_metadata.inspect_err(|error| tracing::debug!(%error, "pod unreadable: the NodeFeature is owned only by the pod"));
        let pod_owners =
            pod_metadata.ok().and_then(|pod_metadata| pod_metadata.metadata.owner_references);
        let controller =
            pod_owners.into_iter().flatten().find(|owner| owner.controller == Some(true));
        controller.into_iter().map(without_controller).chain([pod_owner(pod)]).collect()
    }
}

/// An owner that neither controls the object nor blocks deletions.
fn without_controller(owner: OwnerReference) -> OwnerReference {
    OwnerReference { controller: None, block_owner_deletion: None, ..owner }
}

fn pod_owner(pod: &PodIdentity) -> OwnerReference {
    OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        name: pod.name.clone(),
        uid: pod.uid.clone(),
        ..OwnerReference::default()
    }
}

fn node_document(node: &str, uid: &str, metadata_field: &str, labels: &Labels) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node, "uid": uid, metadata_field: labels},
    })
}

fn node_feature_name(node: &str) -> String {
    format!("windlass-features-for-{node}")
}

/// The `NodeFeature` object. Its three maps of features are empty, but required in v1alpha1.
fn node_feature_document(node: &str, labels: &Labels, owners: &[OwnerReference]) -> Value {
    let mut document = json!({
        "apiVersion": "nfd.k8s-sigs.io/v1alpha1",
        "kind": "NodeFeature",
        "metadata": {
            "name": node_feature_name(node),
            "labels": {"nfd.node.kubernetes.io/node-name": node},
        },
        "spec": {
            "features": {"attributes": {}, "flags": {}, "instances": {}},
            "labels": labels,
        },
    });
    if !owners.is_empty() {
        document["metadata"]["ownerReferences"] = json!(owners);
    }
    document
}

/// Labels that other field managers own, according to a refusal.
fn conflicting_labels(refusal: &Status) -> Vec<String> {
    let causes = refusal.details.iter().flat_map(|details| &details.causes);
    let conflicts = causes.filter(|cause| cause.reason == "FieldManagerConflict");
    conflicts
        .filter_map(|cause| cause.field.strip_prefix(".metadata.labels."))
        .map(str::to_owned)
        .collect()
}
