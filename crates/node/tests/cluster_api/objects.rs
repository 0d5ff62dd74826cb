//! A cluster's objects as far as the agent touches them: one Node, `NodeFeature`s, events, leases,
//! ResourceSlices.
//!
//! Server-side apply, watch and the checks of events follow the API server's own code: apply removes
//! the fields that the same manager no longer names, and refuses a field to which another manager gave another value.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use windlass_testkit::Permission;

use crate::cluster_api::slice_store::SliceStore;

/// The only Node, and its UID.
pub(crate) const NODE: &str = "n1";
pub(crate) const NODE_UID: &str = "0e57ca6d-0000-4000-8000-000000000001";

/// All objects, at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Cluster {
    /// Labels of the Node: value and field managers.
    pub(crate) labels: BTreeMap<String, (String, BTreeSet<String>)>,
    /// `NodeFeature`s by `namespace/name`.
    pub(crate) node_features: BTreeMap<String, Value>,
    pub(crate) events: BTreeMap<String, Value>,
    /// Leases by `namespace/name`.
    pub(crate) leases: BTreeMap<String, Value>,
    pub(crate) slices: SliceStore,
    /// All requests, in order.
    pub(crate) log: Vec<RecordedRequest>,
    pub(crate) refusals: Vec<Refusal>,
    pub(crate) has_node: bool,
    pub(crate) node_uid: &'static str,
    pub(crate) has_nfd: bool,
    /// Watches from this version or an older one are refused as expired.
    pub(crate) compacted: u64,
    /// A change of this number ends every watch.
    pub(crate) ended_watches: u64,
    /// The Node at each version, for watches.
    pub(crate) history: Vec<(u64, Value)>,
    version: u64,
}

/// One request.
#[derive(Clone, Debug, Default)]
pub(crate) struct RecordedRequest {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) query: BTreeMap<String, String>,
    pub(crate) content_type: String,
    pub(crate) accept: String,
    pub(crate) body: Value,
}

/// Injected response, with the number of requests.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub(crate) method: &'static str,
    pub(crate) path: &'static str,
    pub(crate) times: usize,
    pub(crate) status: Value,
}

/// Response.
pub(crate) enum Answer {
    Json(u16, Value),
    Text(u16, &'static str),
    /// A stream of changes after this version.
    Watch(Kind, u64),
}

/// Watched objects.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Node,
    Slices,
}

/// A refusal in the API server's form.
pub(crate) fn status(code: u16, reason: &str, message: &str) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure",
        "code": code, "reason": reason, "message": message,
    })
}

/// The refusal of a request beyond the shipped account's permissions, as by a real API server.
fn forbid(request: &RecordedRequest) -> Option<Answer> {
    let required = Permission::required_by(&request.method, &request.path, &request.query)?;
    let is_granted = Permission::shipped().iter().any(|permission| permission.covers(&required));
    let message = format!("deploy/rbac.yaml does not give {required:?}");
    (!is_granted).then(|| Answer::Json(403, status(403, "Forbidden", &message)))
}

// === impl Cluster ===

impl Default for Cluster {
    fn default() -> Self {
        let mut cluster = Self {
            labels: BTreeMap::new(),
            node_features: BTreeMap::new(),
            events: BTreeMap::new(),
            leases: BTreeMap::new(),
            slices: SliceStore::default(),
            log: Vec::new(),
            refusals: Vec::new(),
            has_node: true,
            node_uid: NODE_UID,
            has_nfd: true,
            compacted: 0,
            ended_watches: 0,
            history: Vec::new(),
            version: 10,
        };
        cluster.set_label("kubernetes.io/hostname", Some(NODE));
        cluster
    }
}

impl Cluster {
    /// The Node's labels, without their managers.
    pub(crate) fn node_labels(&self) -> BTreeMap<&str, &str> {
        self.labels.iter().map(|(key, (value, _))| (key.as_str(), value.as_str())).collect()
    }

    /// Applies a label as `kubectl label` does.
    pub(crate) fn set_label(&mut self, key: &str, value: Option<&str>) {
        match value {
            Some(value) => {
                let entry = (value.to_owned(), BTreeSet::from(["kubectl".to_owned()]));
                self.labels.insert(key.to_owned(), entry);
            }
            None => drop(self.labels.remove(key)),
        }
        self.node_changed();
    }

    /// Requests of one kind, in order.
    pub(crate) fn requests(&self, method: &str, path: &str) -> Vec<&RecordedRequest> {
        let matches =
            |request: &&RecordedRequest| request.method == method && request.path.contains(path);
        self.log.iter().filter(matches).collect()
    }

    pub(crate) fn answer(&mut self, request: &RecordedRequest) -> Answer {
        self.log.push(request.clone());
        if let Some(refusal) = self.refuse(request) {
            return refusal;
        }
        if let Some(refusal) = forbid(request) {
            return refusal;
        }
        let parts: Vec<_> = request.path.trim_matches('/').split('/').collect();
        match (request.method.as_str(), parts.as_slice()) {
            ("GET", ["api", "v1", "nodes"]) => self.list_or_watch(request),
            ("GET", ["api", "v1", "nodes", name]) => self.get_node(name),
            ("PATCH", ["api", "v1", "nodes", name]) => self.patch_node(name, request),
            ("GET", ["api", "v1", "namespaces", "gpu", "pods", "windlass-x"]) => pod(),
            (_, ["apis", "nfd.k8s-sigs.io", "v1alpha1", "namespaces", namespace, _, name]) => {
                self.node_feature(format!("{namespace}/{name}"), request)
            }
            ("POST", ["apis", "events.k8s.io", "v1", "namespaces", namespace, "events"]) => {
                self.create_event(namespace, request)
            }
            ("PATCH", ["apis", "events.k8s.io", "v1", "namespaces", _, "events", name]) => {
                self.patch_event(name, request)
            }
            (
                _,
                [
                    "apis",
                    "coordination.k8s.io",
                    "v1",
                    "namespaces",
                    namespace,
                    "leases",
                    segments @ ..,
                ],
            ) => {
                let name =
                    segments.first().copied().or_else(|| request.body["metadata"]["name"].as_str());
                self.lease(format!("{namespace}/{}", name.expect("a name")), request)
            }
            (_, ["apis", "resource.k8s.io", "v1", "resourceslices", name @ ..]) => {
                let (mut answer, name) = (None, name.first().copied());
                self.change_slices(|slices| answer = Some(slices.answer(name, request)));
                answer.expect("answered")
            }
            _ => Answer::Text(404, "404 page not found\n"),
        }
    }

    fn refuse(&mut self, request: &RecordedRequest) -> Option<Answer> {
        let matches = |refusal: &&mut Refusal| {
            refusal.times > 0
                && request.method == refusal.method
                && request.path.contains(refusal.path)
        };
        let refusal = self.refusals.iter_mut().find(matches)?;
        refusal.times -= 1;
        let code = refusal.status["code"].as_u64().and_then(|code| u16::try_from(code).ok());
        Some(Answer::Json(code.expect("a code"), refusal.status.clone()))
    }

    fn list_or_watch(&mut self, request: &RecordedRequest) -> Answer {
        let field_selector = format!("metadata.name={NODE}");
        assert_eq!(request.query.get("fieldSelector"), Some(&field_selector));
        if request.query.get("watch").map(String::as_str) != Some("true") {
            let items: Vec<_> = self.has_node.then(|| self.node()).into_iter().collect();
            return Answer::Json(
                200,
                json!({
                    "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
                    "metadata": {"resourceVersion": self.version.to_string()}, "items": items,
                }),
            );
        }
        assert_eq!(request.query.get("allowWatchBookmarks").map(String::as_str), Some("true"));
        let from = request.query.get("resourceVersion").and_then(|version| version.parse().ok());
        let from: u64 = from.expect("a watch goes on from a version");
        if from <= self.compacted {
            let text = format!("too old resource version: {from} ({})", self.version);
            return Answer::Json(410, status(410, "Expired", &text));
        }
        Answer::Watch(Kind::Node, from)
    }

    pub(crate) fn history(&self, kind: Kind) -> &[(u64, Value)] {
        match kind {
            Kind::Node => &self.history,
            Kind::Slices => &self.slices.history,
        }
    }

    /// Changes the slices directly, without a request.
    pub(crate) fn change_slices(&mut self, change: impl FnOnce(&mut SliceStore)) {
        self.slices.version = self.version;
        change(&mut self.slices);
        self.version = self.slices.version;
    }

    fn get_node(&self, name: &str) -> Answer {
        if self.has_node && name == NODE {
            return Answer::Json(200, self.node());
        }
        let mut refusal = status(404, "NotFound", &format!("nodes {name:?} not found"));
        refusal["details"] = json!({"name": name, "kind": "nodes"});
        Answer::Json(404, refusal)
    }

    fn node(&self) -> Value {
        json!({
            "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
            "metadata": {
                "name": NODE, "uid": self.node_uid, "resourceVersion": self.version.to_string(),
                "labels": self.node_labels(),
            },
        })
    }

    fn node_changed(&mut self) {
        self.version += 1;
        let event = json!({"type": "MODIFIED", "object": self.node()});
        self.history.push((self.version, event));
    }

    /// Raises the version, as another object's change does; watches get a bookmark alone.
    pub(crate) fn bookmark(&mut self) {
        self.version += 1;
        let metadata =
            json!({"resourceVersion": self.version.to_string(), "creationTimestamp": null});
        let object = json!({"kind": "Node", "apiVersion": "v1", "metadata": metadata});
        self.history.push((self.version, json!({"type": "BOOKMARK", "object": object})));
    }

    fn patch_node(&mut self, name: &str, request: &RecordedRequest) -> Answer {
        assert_eq!(name, NODE);
        assert_eq!(request.content_type, "application/apply-patch+yaml");
        if request.body["metadata"]["uid"] != NODE_UID {
            return Answer::Json(409, status(409, "Conflict", "uid mismatch"));
        }
        let manager = request.query.get("fieldManager").expect("an apply has a manager");
        let labels: BTreeMap<String, String> =
            serde_json::from_value(request.body["metadata"]["labels"].clone()).expect("labels");
        let conflict = |(key, value): &(&String, &String)| {
            let (current, managers) = self.labels.get(*key)?;
            let other = managers.iter().find(|other| *other != manager)?;
            (current != *value).then(|| {
                json!({
                    "reason": "FieldManagerConflict",
                    "message": format!("conflict with {other:?} using v1"),
                    "field": format!(".metadata.labels.{key}"),
                })
            })
        };
        let causes: Vec<_> = labels.iter().filter_map(|pair| conflict(&pair)).collect();
        if !causes.is_empty() {
            let mut refusal = status(409, "Conflict", "Apply failed with conflicts");
            refusal["details"] = json!({"causes": causes});
            return Answer::Json(409, refusal);
        }
        self.apply_labels(manager, labels);
        Answer::Json(200, self.node())
    }

    fn apply_labels(&mut self, manager: &str, labels: BTreeMap<String, String>) {
        let before = self.labels.clone();
        for (key, (_, managers)) in &mut self.labels {
            if !labels.contains_key(key) && managers.remove(manager) && managers.is_empty() {
                managers.insert("nobody".to_owned());
            }
        }
        self.labels.retain(|_, (_, managers)| !managers.contains("nobody"));
        for (key, value) in labels {
            let entry = self.labels.entry(key).or_default();
            entry.0 = value;
            entry.1.insert(manager.to_owned());
        }
        if self.labels != before {
            self.node_changed();
        }
    }

    fn node_feature(&mut self, name: String, request: &RecordedRequest) -> Answer {
        if !self.has_nfd {
            return Answer::Text(404, "404 page not found\n");
        }
        if request.method == "DELETE" {
            let existing = self.node_features.remove(&name).is_some();
            let code = if existing { 200 } else { 404 };
            return Answer::Json(code, status(code, "NotFound", "deleted, or missing"));
        }
        assert_eq!(request.method, "PATCH");
        assert_eq!(request.content_type, "application/apply-patch+yaml");
        assert_eq!(request.query.get("force").map(String::as_str), Some("true"));
        self.node_features.insert(name, request.body.clone());
        let metadata = request.body["metadata"].clone();
        Answer::Json(
            200,
            json!({
                "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
            }),
        )
    }

    /// A write with an outdated version is refused, as is the creation of an existing object.
    fn lease(&mut self, name: String, request: &RecordedRequest) -> Answer {
        let existing = self.leases.get(&name);
        let version = |lease: &Value| lease["metadata"]["resourceVersion"].clone();
        let (code, reason) = match (request.method.as_str(), existing) {
            ("GET", Some(existing)) => return Answer::Json(200, existing.clone()),
            ("GET" | "PUT", None) => (404, "NotFound"),
            ("POST", Some(_)) => (409, "AlreadyExists"),
            ("PUT", Some(existing)) if version(existing) != version(&request.body) => {
                (409, "Conflict")
            }
            ("POST" | "PUT", _) => (200, ""),
            (other, _) => panic!("{other} of a lease"),
        };
        if code != 200 {
            return Answer::Json(code, status(code, reason, &format!("leases {name:?}: {reason}")));
        }
        self.version += 1;
        let mut lease = request.body.clone();
        lease["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.leases.insert(name, lease.clone());
        Answer::Json(200, lease)
    }

    fn create_event(&mut self, namespace: &str, request: &RecordedRequest) -> Answer {
        let event = &request.body;
        let name = event["metadata"]["name"].as_str().expect("a name").to_owned();
        if let Some(message) = violation(namespace, event) {
            return Answer::Json(422, status(422, "Invalid", message));
        }
        if self.events.contains_key(&name) {
            return Answer::Json(409, status(409, "AlreadyExists", "already exists"));
        }
        self.events.insert(name, event.clone());
        Answer::Json(201, event.clone())
    }

    fn patch_event(&mut self, name: &str, request: &RecordedRequest) -> Answer {
        assert_eq!(request.content_type, "application/merge-patch+json");
        let Some(event) = self.events.get_mut(name) else {
            return Answer::Json(404, status(404, "NotFound", "no such event"));
        };
        let keys: Vec<_> = request.body.as_object().expect("a patch").keys().collect();
        assert_eq!(keys, ["series"], "everything else of an event is immutable");
        event["series"] = request.body["series"].clone();
        Answer::Json(
            200,
            json!({
                "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
                "metadata": event["metadata"],
            }),
        )
    }
}

/// Reason for an API server to refuse an event of events.k8s.io/v1 about a Node.
fn violation(namespace: &str, event: &Value) -> Option<&'static str> {
    let text = |key: &str| event[key].as_str().unwrap_or_default();
    let has_length = |key: &str, limit: usize| (1..=limit).contains(&text(key).len());
    let checks = [
        (namespace == "default", "an event about a Node lies in default"),
        (event["regarding"]["namespace"].is_null(), "a Node has no namespace"),
        (event["eventTime"].is_string(), "eventTime is required"),
        (text("reportingController").contains('/'), "reportingController is no qualified name"),
        (has_length("reportingInstance", 128), "reportingInstance"),
        (has_length("action", 128), "action"),
        (has_length("reason", 128), "reason"),
        (text("note").len() <= 1024, "note is too long"),
        (["Normal", "Warning"].contains(&text("type")), "type"),
        (event["series"].is_null(), "a new event is no series"),
        (event["deprecatedCount"].is_null(), "deprecatedCount"),
    ];
    checks.into_iter().find(|(is_met, _)| !is_met).map(|(_, message)| message)
}

/// The pod that an agent in namespace `gpu` runs in.
fn pod() -> Answer {
    let owner = json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "windlass", "uid": "ds-uid",
        "controller": true, "blockOwnerDeletion": true,
    });
    let metadata = json!({"name": "windlass-x", "namespace": "gpu", "ownerReferences": [owner]});
    Answer::Json(
        200,
        json!({
            "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
        }),
    )
}
