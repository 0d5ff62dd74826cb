//! The ResourceSlices of a cluster, as the API server keeps them: with generated names, compared versions, times in
//! taints, and without the fields whose feature gate is off.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::cluster_api::objects::{Answer, Kind, RecordedRequest, status};

/// All slices, at one moment.
#[derive(Clone, Debug)]
pub(crate) struct SliceStore {
    /// Slices by name.
    pub(crate) slices: BTreeMap<String, Value>,
    /// Watch events.
    pub(crate) history: Vec<(u64, Value)>,
    /// True if the API server knows ResourceSlices.
    pub(crate) is_served: bool,
    /// True if its feature gates for sharing and taints are on.
    pub(crate) has_feature_gates: bool,
    /// Devices that the API server refuses.
    pub(crate) refused: BTreeSet<&'static str>,
    pub(crate) version: u64,
    /// Number of updates that were refused for an outdated version.
    pub(crate) conflicts: usize,
}

pub(crate) const PATH: &str = "/resourceslices";

// === impl SliceStore ===

impl Default for SliceStore {
    fn default() -> Self {
        let (all, history, refused) = Default::default();
        Self {
            slices: all,
            history,
            is_served: true,
            has_feature_gates: true,
            refused,
            version: 0,
            conflicts: 0,
        }
    }
}

impl SliceStore {
    pub(crate) fn answer(&mut self, name: Option<&str>, request: &RecordedRequest) -> Answer {
        if !self.is_served {
            return Answer::Text(404, "404 page not found\n");
        }
        match (request.method.as_str(), name) {
            ("GET", None) => self.list_or_watch(request),
            ("POST", None) => self.create(request.body.clone()),
            ("PUT", Some(name)) => self.update(name, request.body.clone()),
            ("DELETE", Some(name)) => self.delete(name, &request.body["preconditions"]),
            (method, name) => panic!("{method} of slice {name:?}"),
        }
    }

    /// Deletes slices as a kubelet does at its start.
    pub(crate) fn delete_all(&mut self) {
        let names: Vec<_> = self.slices.keys().cloned().collect();
        for name in &names {
            self.remove(name);
        }
    }

    pub(crate) fn remove(&mut self, name: &str) {
        let slice = self.slices.remove(name).expect("it is there");
        self.add_event("DELETED", slice);
    }

    pub(crate) fn put(&mut self, name: &str, mut slice: Value) {
        self.version += 1;
        slice["metadata"]["resourceVersion"] = self.version.to_string().into();
        let is_new = self.slices.insert(name.to_owned(), slice.clone()).is_none();
        let event = if is_new { "ADDED" } else { "MODIFIED" };
        self.history.push((self.version, json!({"type": event, "object": slice})));
    }

    fn add_event(&mut self, event: &str, mut slice: Value) {
        self.version += 1;
        slice["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.history.push((self.version, json!({"type": event, "object": slice})));
    }

    fn list_or_watch(&self, request: &RecordedRequest) -> Answer {
        let selector = request.query.get("fieldSelector").map(String::as_str);
        assert_eq!(selector, Some("spec.driver=windlass.dev,spec.nodeName=n1"));
        if request.query.get("watch").map(String::as_str) == Some("true") {
            let from = request.query.get("resourceVersion").and_then(|it| it.parse().ok());
            return Answer::Watch(Kind::Slices, from.expect("a watch goes on from a version"));
        }
        let items: Vec<_> = self.slices.values().collect();
        Answer::Json(
            200,
            json!({
                "kind": "ResourceSliceList", "apiVersion": "resource.k8s.io/v1", "items": items,
                "metadata": {"resourceVersion": self.version.to_string()},
            }),
        )
    }

    fn create(&mut self, mut slice: Value) -> Answer {
        if let Some(refusal) = self.refusal(&slice) {
            return refusal;
        }
        let prefix = slice["metadata"]["generateName"].as_str().expect("a prefix").to_owned();
        // The API server shortens the prefix to make room for its suffix.
        let name = format!("{}{:05}", &prefix[..prefix.len().min(58)], self.version);
        slice["metadata"]["name"] = name.clone().into();
        slice["metadata"]["uid"] = format!("uid-of-{name}").into();
        self.normalize(&mut slice);
        self.put(&name, slice);
        Answer::Json(201, self.slices[&name].clone())
    }

    fn update(&mut self, name: &str, mut slice: Value) -> Answer {
        let Some(existing) = self.slices.get(name) else { return not_found(name) };
        if existing["metadata"]["resourceVersion"] != slice["metadata"]["resourceVersion"] {
            self.conflicts += 1;
            return Answer::Json(409, status(409, "Conflict", "the object has been modified"));
        }
        if let Some(refusal) = self.refusal(&slice) {
            return refusal;
        }
        self.normalize(&mut slice);
        self.put(name, slice);
        Answer::Json(200, self.slices[name].clone())
    }

    fn delete(&mut self, name: &str, preconditions: &Value) -> Answer {
        let Some(existing) = self.slices.get(name) else { return not_found(name) };
        for key in ["uid", "resourceVersion"] {
            assert_eq!(
                preconditions[key], existing["metadata"][key],
                "only a known version is deleted"
            );
        }
        self.remove(name);
        Answer::Json(200, status(200, "", "deleted"))
    }

    /// Changes a slice as the API server does before it stores one.
    fn normalize(&self, slice: &mut Value) {
        for device in slice["spec"]["devices"].as_array_mut().into_iter().flatten() {
            let device = device.as_object_mut().expect("a device");
            if self.has_feature_gates {
                for taint in
                    device.get_mut("taints").and_then(Value::as_array_mut).into_iter().flatten()
                {
                    let taint = taint.as_object_mut().expect("a taint");
                    taint.entry("timeAdded").or_insert("2026-01-02T03:04:05Z".into());
                }
                continue;
            }
            device.remove("taints");
            device.remove("allowMultipleAllocations");
            let capacity = device.get_mut("capacity").and_then(Value::as_object_mut);
            for capacity in capacity.into_iter().flat_map(|capacity| capacity.values_mut()) {
                capacity.as_object_mut().expect("a capacity").remove("requestPolicy");
            }
        }
    }

    fn refusal(&self, slice: &Value) -> Option<Answer> {
        let devices = slice["spec"]["devices"].as_array().into_iter().flatten().enumerate();
        let is_refused =
            |device: &Value| device["name"].as_str().is_some_and(|it| self.refused.contains(it));
        let causes = devices.filter(|(_, device)| is_refused(device)).map(|(index, _)| {
            json!({
                "reason": "FieldValueInvalid", "message": "Invalid value: refused by the test",
                "field": format!("spec.devices[{index}].attributes[x].string"),
            })
        });
        let causes: Vec<_> = causes.collect();
        let pool = slice["spec"]["pool"]["name"].as_str().expect("a pool");
        if causes.is_empty() && !self.refused.contains(pool) {
            return None;
        }
        let mut refusal = status(422, "Invalid", "ResourceSlice is invalid");
        refusal["details"] = json!({"kind": "ResourceSlice", "causes": causes});
        Some(Answer::Json(422, refusal))
    }
}

fn not_found(name: &str) -> Answer {
    let mut refusal = status(404, "NotFound", &format!("resourceslices {name:?} not found"));
    refusal["details"] = json!({"name": name, "kind": "resourceslices"});
    Answer::Json(404, refusal)
}
