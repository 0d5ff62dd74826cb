//! Snapshot of all objects that placement reads, from the API server or from a file.
//!
//! The file is a `List`, as printed by `kubectl get nodes,pods,resourceslices,resourceclaims,deviceclasses -A -o json`.
//! A recording (`windlass cluster record`) has only the fields that placement reads: no environment variable, command
//! or name of a Secret leaves the cluster.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use k8s_openapi::{
    api::{
        core::v1::{Container, Node, NodeSpec, NodeStatus, Pod, PodSpec, PodStatus},
        resource::v1::{DeviceClass, ResourceClaim, ResourceSlice},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::Api;
use serde_json::{Value, json};

use crate::{
    access::{self, NoAccess, RequestError},
    facts::{self, NodeFacts, PodFacts},
    gpushare,
    index::Index,
};

/// Objects of a cluster at one moment.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    nodes: Vec<Node>,
    pods: Vec<Pod>,
    slices: Vec<ResourceSlice>,
    claims: Vec<ResourceClaim>,
    classes: Vec<DeviceClass>,
}

/// Reason why the objects cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ObjectsError {
    /// No access to the API server.
    #[error(transparent)]
    NoAccess(#[from] NoAccess),
    /// The API server refused or did not answer. The field is the plural resource name.
    #[error("cannot list {0}")]
    List(&'static str, #[source] RequestError),
    /// The file is not JSON.
    #[error("{0} is no JSON document")]
    Json(PathBuf, #[source] serde_json::Error),
    /// The file is JSON, but not a `List`.
    #[error("{0} is no List of objects: write one with `windlass cluster record`")]
    NoList(PathBuf),
    /// An item of the file does not match the schema of its kind.
    #[error("item {item} of {path} is no {kind}")]
    Item {
        /// The file.
        path: PathBuf,
        /// Position in the list, from zero.
        item: usize,
        /// The item's `kind`.
        kind: String,
        /// The reason.
        source: serde_json::Error,
    },
}

// === impl Objects ===

impl Objects {
    /// Lists the objects of a cluster.
    ///
    /// # Errors
    ///
    /// No credentials, or the API server refuses or does not answer.
    pub async fn fetch(kubeconfig: Option<PathBuf>) -> Result<Self, ObjectsError> {
        Self::of(access::client(kubeconfig).await?).await
    }

    /// Lists the objects with a client.
    pub(crate) async fn of(client: kube::Client) -> Result<Self, ObjectsError> {
        let nodes = list(Api::all(client.clone()), "nodes").await?;
        let pods = list(Api::all(client.clone()), "pods").await?;
        // Clusters before 1.34 do not serve these kinds.
        let slices = list_if_served(Api::all(client.clone()), "resourceslices").await?;
        let claims = list_if_served(Api::all(client.clone()), "resourceclaims").await?;
        let classes = list_if_served(Api::all(client), "deviceclasses").await?;
        Ok(Self { nodes, pods, slices, claims, classes })
    }

    pub(crate) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    pub(crate) fn pods(&self) -> &[Pod] {
        &self.pods
    }

    pub(crate) fn slices(&self) -> &[ResourceSlice] {
        &self.slices
    }

    pub(crate) fn claims(&self) -> &[ResourceClaim] {
        &self.claims
    }

    pub(crate) fn classes(&self) -> &[DeviceClass] {
        &self.classes
    }

    /// Parses a file's text. `path` is for error messages. Items of other kinds are ignored.
    ///
    /// # Errors
    ///
    /// The text is not JSON, not a `List`, or has an invalid item.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ObjectsError> {
        let document: Value = serde_json::from_str(text)
            .map_err(|source| ObjectsError::Json(path.to_owned(), source))?;
        let Some(items) = document["items"].as_array() else {
            return Err(ObjectsError::NoList(path.to_owned()));
        };
        let mut objects = Self::default();
        for (item, object) in items.iter().enumerate() {
            let kind = object["kind"].as_str().unwrap_or_default();
            let item_error = |source| {
                let (path, kind) = (path.to_owned(), kind.to_owned());
                ObjectsError::Item { path, item, kind, source }
            };
            let object = object.clone();
            match kind {
                "Node" => objects.nodes.push(serde_json::from_value(object).map_err(item_error)?),
                "Pod" => objects.pods.push(serde_json::from_value(object).map_err(item_error)?),
                "ResourceSlice" => {
                    objects.slices.push(serde_json::from_value(object).map_err(item_error)?);
                }
                "ResourceClaim" => {
                    objects.claims.push(serde_json::from_value(object).map_err(item_error)?);
                }
                "DeviceClass" => {
                    objects.classes.push(serde_json::from_value(object).map_err(item_error)?);
                }
                _ => {}
            }
        }
        Ok(objects)
    }

    /// The objects as a `List` with the fields that placement reads.
    pub fn to_recording(&self) -> Value {
        let nodes = self.nodes.iter().map(recorded_node).map(|node| json!(node));
        let pods = self.pods.iter().map(recorded_pod).map(|pod| json!(pod));
        let slices = self.slices.iter().cloned().map(|mut slice| {
            slice.metadata = recorded_metadata(&slice.metadata);
            json!(slice)
        });
        let claims = self.claims.iter().map(recorded_claim).map(|claim| json!(claim));
        let classes = self.classes.iter().cloned().map(|mut class| {
            class.metadata = recorded_metadata(&class.metadata);
            class.spec.config = None;
            json!(class)
        });
        let items = nodes.chain(pods).chain(slices).chain(claims).chain(classes);
        json!({"apiVersion": "v1", "kind": "List", "items": items.collect::<Vec<_>>()})
    }

    /// Builds a synced index from the objects.
    pub fn to_index(&self) -> Index {
        let mut index = Index::default();
        for node in &self.nodes {
            index.set_node(NodeFacts::of(node));
        }
        for pod in &self.pods {
            index.set_pod(PodFacts::of(pod));
        }
        self.slices.iter().for_each(|slice| index.set_slice(slice.clone()));
        self.claims.iter().for_each(|claim| index.set_claim(claim.clone()));
        self.classes.iter().for_each(|class| index.set_class(class.clone()));
        index.set_synced();
        index
    }

    /// All pods of this name, in one namespace or in all.
    pub fn pods_named(&self, namespace: Option<&str>, name: &str) -> Vec<PodFacts> {
        let is_match = |pod: &&Pod| {
            pod.metadata.name.as_deref() == Some(name)
                && namespace
                    .is_none_or(|namespace| pod.metadata.namespace.as_deref() == Some(namespace))
        };
        self.pods.iter().filter(is_match).map(PodFacts::of).collect()
    }
}

async fn list<K>(api: Api<K>, kind: &'static str) -> Result<Vec<K>, ObjectsError>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let result = access::list(&api, |object| object).await;
    result.map_err(|error| ObjectsError::List(kind, error.into()))
}

/// Like [`list`], but empty if the API server does not serve the kind.
async fn list_if_served<K>(api: Api<K>, kind: &'static str) -> Result<Vec<K>, ObjectsError>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    match list(api, kind).await {
        Err(ObjectsError::List(_, error)) if error.is_not_found() => Ok(Vec::new()),
        result => result,
    }
}

fn recorded_node(node: &Node) -> Node {
    let metadata = ObjectMeta {
        name: node.metadata.name.clone(),
        labels: node.metadata.labels.clone(),
        annotations: recorded_annotations(&node.metadata),
        ..ObjectMeta::default()
    };
    let spec = node.spec.as_ref().map(|spec| NodeSpec {
        taints: spec.taints.clone(),
        unschedulable: spec.unschedulable,
        ..NodeSpec::default()
    });
    let allocatable = node.status.as_ref().and_then(|status| status.allocatable.clone());
    Node { metadata, spec, status: Some(NodeStatus { allocatable, ..NodeStatus::default() }) }
}

fn recorded_pod(pod: &Pod) -> Pod {
    let metadata = ObjectMeta {
        name: pod.metadata.name.clone(),
        namespace: pod.metadata.namespace.clone(),
        uid: pod.metadata.uid.clone(),
        resource_version: pod.metadata.resource_version.clone(),
        creation_timestamp: pod.metadata.creation_timestamp.clone(),
        deletion_timestamp: pod.metadata.deletion_timestamp.clone(),
        labels: recorded_labels(&pod.metadata),
        annotations: recorded_annotations(&pod.metadata),
        ..ObjectMeta::default()
    };
    let container = |container: &Container| Container {
        name: container.name.clone(),
        resources: container.resources.clone(),
        restart_policy: container.restart_policy.clone(),
        ..Container::default()
    };
    let containers =
        |containers: &[Container]| containers.iter().map(container).collect::<Vec<_>>();
    let spec = pod.spec.as_ref().map(|spec| PodSpec {
        containers: containers(&spec.containers),
        init_containers: spec.init_containers.as_deref().map(containers),
        node_name: spec.node_name.clone(),
        overhead: spec.overhead.clone(),
        priority: spec.priority,
        resource_claims: spec.resource_claims.clone(),
        resources: spec.resources.clone(),
        scheduler_name: spec.scheduler_name.clone(),
        scheduling_gates: spec.scheduling_gates.clone(),
        ..PodSpec::default()
    });
    let status = pod.status.as_ref().map(|status| PodStatus {
        phase: status.phase.clone(),
        resource_claim_statuses: status.resource_claim_statuses.clone(),
        ..PodStatus::default()
    });
    Pod { metadata, spec, status }
}

/// A claim without its opaque driver parameters, which may contain secrets.
fn recorded_claim(claim: &ResourceClaim) -> ResourceClaim {
    let mut claim = claim.clone();
    claim.metadata = recorded_metadata(&claim.metadata);
    if let Some(devices) = &mut claim.spec.devices {
        devices.config = None;
    }
    if let Some(status) = &mut claim.status {
        status.devices = None;
    }
    let allocation = claim.status.as_mut().and_then(|status| status.allocation.as_mut());
    if let Some(devices) = allocation.and_then(|allocation| allocation.devices.as_mut()) {
        devices.config = None;
    }
    claim
}

/// Metadata reduced to name, namespace and UID.
fn recorded_metadata(metadata: &ObjectMeta) -> ObjectMeta {
    ObjectMeta {
        name: metadata.name.clone(),
        namespace: metadata.namespace.clone(),
        uid: metadata.uid.clone(),
        ..ObjectMeta::default()
    }
}

/// The labels that name a pod's gang and application.
fn recorded_labels(metadata: &ObjectMeta) -> Option<BTreeMap<String, String>> {
    let mut labels = metadata.labels.clone()?;
    labels.retain(|key, _| [facts::GANG, facts::PART_OF].contains(&key.as_str()));
    Some(labels)
}

/// Annotations that placement reads, by prefix.
fn recorded_annotations(metadata: &ObjectMeta) -> Option<BTreeMap<String, String>> {
    let mut annotations = metadata.annotations.clone()?;
    let prefixes = ["windlass.dev/", "nvidia.com/", gpushare::PREFIX];
    annotations.retain(|key, _| prefixes.iter().any(|prefix| key.starts_with(prefix)));
    Some(annotations)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_keeps_only_fields_that_placement_reads() {
        let text = r#"{"kind":"List","items":[
            {"kind":"Node","metadata":{"name":"n1","annotations":{"secret":"x",
                "windlass.dev/devices":"{\"devices\":[{\"id\":\"GPU-a\",\"memoryMib\":24576}]}"}},
             "status":{"allocatable":{"cpu":"8","memory":"64Gi","pods":"110"},"nodeInfo":null}},
            {"kind":"Pod","metadata":{"name":"p","namespace":"ns","uid":"u","labels":{"a":"secret",
                "windlass.dev/gang":"train","app.kubernetes.io/part-of":"door"},"annotations":{"windlass.dev/gang-size":"2"}},
             "spec":{"nodeName":"n1","containers":[{"name":"c","command":["secret"],
                "env":[{"name":"PASSWORD","value":"secret"}],
                "resources":{"limits":{"windlass.dev/gpu-memory":"8"}}}]}},
            {"kind":"ResourceSlice","metadata":{"name":"s","annotations":{"a":"secret"}},
             "spec":{"driver":"d","pool":{"name":"p","generation":1,"resourceSliceCount":1}}},
            {"kind":"DeviceClass","metadata":{"name":"c","annotations":{"a":"secret"}},
             "spec":{"config":[{"opaque":{"driver":"d","parameters":{"a":"secret"}}}]}},
            {"kind":"ResourceClaim","metadata":{"name":"c","labels":{"a":"secret"}},
             "spec":{"devices":{"config":[{"opaque":{"driver":"d","parameters":{"a":"secret"}}}]}},
             "status":{"devices":[{"driver":"d","pool":"p","device":"g","data":{"a":"secret"}}]}},
            {"kind":"Service","metadata":{"name":"s"}}]}"#;
        let objects = Objects::parse(text, Path::new("f")).expect("a list");
        let recording = objects.to_recording().to_string();
        assert!(!recording.contains("secret") && !recording.contains("PASSWORD"), "{recording}");
        let parsed = Objects::parse(&recording, Path::new("f")).expect("a list");
        let view = |objects: &Objects| {
            let mut index = objects.to_index();
            let nodes = index.node_snapshots();
            nodes.iter().map(|node| node.state.clone()).collect::<Vec<_>>()
        };
        assert_eq!(view(&parsed), view(&objects));
        let gang = |objects: &Objects| objects.pods_named(None, "p")[0].gang.clone();
        assert!(gang(&parsed).is_some_and(|gang| gang.is_ok_and(|gang| gang.size == 2)));
        assert_eq!(view(&parsed)[0].gpus[0].idle_milli(), 666);
        let free = |objects: &Objects, without| {
            objects
                .free_nodes(without)
                .iter()
                .map(|node| node.resources.clone())
                .collect::<Vec<_>>()
        };
        for without in [None, Some("door")] {
            assert_eq!(free(&parsed, without), free(&objects, without));
        }
    }

    #[test]
    fn an_error_about_a_file_names_its_path_and_item() {
        let error = |text: &str| {
            let error = Objects::parse(text, Path::new("f.json")).expect_err("refused");
            windlass_host::causes(&error)
        };
        assert!(error("{").starts_with("f.json is no JSON document: EOF"), "{}", error("{"));
        assert!(error("{}").starts_with("f.json is no List of objects"));
        let pod = r#"{"items":[{"kind":"Node"},{"kind":"Pod","spec":{"containers":7}}]}"#;
        assert!(error(pod).starts_with("item 1 of f.json is no Pod: "), "{}", error(pod));
    }
}
