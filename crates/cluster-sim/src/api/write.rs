//! Writing verbs: create, update, patch, delete.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{
    kind::{Kind, Status},
    patch,
    refusal::{Cause, Refusal},
    request::{ApiRequest, NamespacedName, Part},
    selector::Selector,
    server_state::ServerState,
    shape,
    store::{Entry, FieldManager, group_resource},
    strategy::{self, WriteContext},
    strict,
};

type WriteResult = Result<Value, Refusal>;

/// Result of a patch. The HTTP code distinguishes a creation from a change.
#[derive(Debug)]
pub(crate) struct PatchResult {
    pub(crate) code: u16,
    pub(crate) object: Value,
    pub(crate) warnings: Vec<String>,
}

/// Maximum length of `generateName` in a generated name. The random suffix follows.
const MAX_GENERATED_BASE: usize = 58;

// === impl ServerState ===

impl ServerState {
    pub(crate) fn find(&self, kind: &Kind, id: &NamespacedName) -> Result<&Entry, Refusal> {
        self.store.get(kind, id).ok_or_else(|| Refusal::not_found(kind, &id.name))
    }

    /// Creates an object under its name, or under a generated one.
    pub(crate) fn create(
        &mut self,
        kind: &'static Kind,
        namespace: &str,
        body: Value,
    ) -> WriteResult {
        let object = read(kind, body)?;
        let id = self.new_id(kind, namespace, &object)?;
        if self.store.get(kind, &id).is_some() {
            return Err(Refusal::already_exists(kind, &id.name));
        }
        let disabled_gates: Vec<_> = self.disabled_gates.iter().copied().collect();
        let mut object = strategy::prepare(
            &WriteContext { kind, old: None, part: Part::Main },
            object,
            &disabled_gates,
        );
        self.set_server_metadata(&mut object, &id);
        object = read(kind, object)?;
        strategy::check(kind, &object, None)?;
        Ok(self.store.insert(kind, id, Entry { object, applied_configs: [].into() }))
    }

    fn new_id(
        &mut self,
        kind: &Kind,
        namespace: &str,
        object: &Value,
    ) -> Result<NamespacedName, Refusal> {
        let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default();
        let provided = text("namespace");
        if !provided.is_empty() && provided != namespace {
            let reason = "the namespace of the provided object does not match the namespace sent on \
                       the request";
            return Err(Refusal::bad_request(reason));
        }
        let name = match (text("name"), text("generateName")) {
            ("", "") => {
                let reason = "name or generateName is required";
                let cause = Cause::required("metadata.name", reason);
                return Err(Refusal::invalid(kind, "", &[cause]));
            }
            ("", base) => {
                let base: String = base.chars().take(MAX_GENERATED_BASE).collect();
                base + &self.store.suffix()
            }
            (name, _) => name.to_owned(),
        };
        Ok(NamespacedName { namespace: namespace.to_owned(), name })
    }

    /// Sets the metadata that the server owns.
    fn set_server_metadata(&mut self, object: &mut Value, id: &NamespacedName) {
        let metadata = &mut object["metadata"];
        metadata["name"] = id.name.clone().into();
        metadata["uid"] = self.store.uid().into();
        metadata["creationTimestamp"] = shape::now().into();
        if !id.namespace.is_empty() {
            metadata["namespace"] = id.namespace.clone().into();
        }
    }

    /// Replaces an object, or its status.
    pub(crate) fn update(
        &mut self,
        kind: &'static Kind,
        id: &NamespacedName,
        (part, body): (Part, Value),
    ) -> WriteResult {
        let new = read(kind, body)?;
        let name = new["metadata"]["name"].as_str().unwrap_or_default();
        if name != id.name {
            let url = &id.name;
            return Err(Refusal::bad_request(format!(
                "the name of the object ({name}) does not match the name on the URL ({url})"
            )));
        }
        let entry = self.find(kind, id)?.clone();
        self.replace(kind, id, (part, new), entry)
    }

    /// Replaces the old object, and stores the applied configurations that come with it.
    fn replace(
        &mut self,
        kind: &'static Kind,
        id: &NamespacedName,
        (part, new): (Part, Value),
        Entry { object: old, applied_configs }: Entry,
    ) -> WriteResult {
        let version = new["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        if !version.is_empty() && old["metadata"]["resourceVersion"] != version {
            return Err(Refusal::modified(kind, &id.name));
        }
        let uid = &new["metadata"]["uid"];
        if !uid.is_null() && *uid != old["metadata"]["uid"] {
            let (expected, actual) = (uid.as_str().unwrap_or_default(), &old["metadata"]["uid"]);
            let actual = actual.as_str().unwrap_or_default();
            let reason = format!(
                "Precondition failed: UID in precondition: {expected}, UID in object meta: {actual}"
            );
            return Err(Refusal::conflict(kind, &id.name, &reason));
        }
        let disabled_gates: Vec<_> = self.disabled_gates.iter().copied().collect();
        let new =
            strategy::prepare(&WriteContext { kind, old: Some(&old), part }, new, &disabled_gates);
        let new = read(kind, new)?;
        strategy::check(kind, &new, Some(&old))?;
        let stored_configs = self.store.get(kind, id).map(|entry| &entry.applied_configs);
        if new == old && stored_configs == Some(&applied_configs) {
            return Ok(old);
        }
        let is_deleted = new["metadata"]["deletionTimestamp"].is_string() && !has_finalizers(&new);
        let object = self.store.insert(kind, id.clone(), Entry { object: new, applied_configs });
        if is_deleted {
            self.store.remove(group_resource(kind), id);
        }
        Ok(object)
    }

    /// Patches an object, or its status. A server-side apply creates a missing object.
    pub(crate) fn patch(
        &mut self,
        kind: &'static Kind,
        id: &NamespacedName,
        (part, request): (Part, &ApiRequest),
    ) -> Result<PatchResult, Refusal> {
        let media_type = request.content_type.split(';').next().unwrap_or_default();
        let is_apply = media_type == "application/apply-patch+yaml";
        if is_apply && part == Part::Main && self.store.get(kind, id).is_none() {
            let warnings = strict::check(kind, &request.body, request)?;
            let object = self.create_applied(kind, id, request)?;
            return Ok(PatchResult { code: 201, object, warnings });
        }
        let Entry { object: old, mut applied_configs } = self.find(kind, id)?.clone();
        let mut new = old.clone();
        match media_type {
            "application/json-patch+json" => {
                let result = patch::apply_operations(&mut new, &request.body);
                result.map_err(|reason| Refusal::new(422, "Invalid", reason))?;
            }
            "application/strategic-merge-patch+json" => {
                patch::merge_strategically(&mut new, &request.body, "");
            }
            _ if is_apply => apply((part, request), (&mut new, &mut applied_configs))?,
            _ => patch::merge(&mut new, &request.body),
        }
        let warnings = strict::check(kind, &new, request)?;
        let new = read(kind, new)?;
        let object = self.replace(kind, id, (part, new), Entry { object: old, applied_configs })?;
        Ok(PatchResult { code: 200, object, warnings })
    }

    /// Creates an object by a server-side apply. A second write adds the applied configuration.
    fn create_applied(
        &mut self,
        kind: &'static Kind,
        id: &NamespacedName,
        request: &ApiRequest,
    ) -> WriteResult {
        let manager = FieldManager::of(request, Part::Main)?;
        let mut body = request.body.clone();
        body["metadata"]["name"] = id.name.clone().into();
        let object = self.create(kind, &id.namespace, body)?;
        let applied_configs = [(manager, request.body.clone())].into();
        Ok(self.store.insert(kind, id.clone(), Entry { object, applied_configs }))
    }

    /// Deletes an object. An object with finalizers is only marked for deletion.
    pub(crate) fn delete(
        &mut self,
        kind: &'static Kind,
        id: &NamespacedName,
        options: &Value,
    ) -> WriteResult {
        let Entry { object, applied_configs } = self.find(kind, id)?.clone();
        for (key, field) in [("uid", "UID"), ("resourceVersion", "ResourceVersion")] {
            let (expected, actual) = (&options["preconditions"][key], &object["metadata"][key]);
            if !expected.is_null() && expected != actual {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                let reason = format!(
                    "Precondition failed: {field} in precondition: {}, {field} in object meta: {}",
                    text(expected),
                    text(actual)
                );
                return Err(Refusal::conflict(kind, &id.name, &reason));
            }
        }
        if has_finalizers(&object) {
            let mut marked = object;
            if marked["metadata"]["deletionTimestamp"].is_null() {
                marked["metadata"]["deletionTimestamp"] = shape::now().into();
                marked["metadata"]["deletionGracePeriodSeconds"] = 0.into();
                marked =
                    self.store.insert(kind, id.clone(), Entry { object: marked, applied_configs });
            }
            return Ok(marked);
        }
        self.store.remove(group_resource(kind), id);
        if kind.deletion_returns_object() {
            let mut deleted = object;
            deleted["metadata"]["resourceVersion"] = self.store.version().to_string().into();
            return Ok(deleted);
        }
        Ok(json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
            "details": {
                "name": id.name, "group": kind.group, "kind": kind.resource,
                "uid": object["metadata"]["uid"],
            },
        }))
    }

    /// Deletes the selected objects, and returns them.
    pub(crate) fn delete_all(
        &mut self,
        kind: &'static Kind,
        selector: &Selector,
    ) -> Result<Vec<Value>, Refusal> {
        let objects = self.store.all(kind).filter(|(_, object)| selector.matches(object));
        let objects: Vec<_> = objects.map(|(id, object)| (id.clone(), object.clone())).collect();
        for (id, _) in &objects {
            self.delete(kind, id, &Value::Null)?;
        }
        Ok(objects.into_iter().map(|(_, object)| object).collect())
    }

    /// Stores an object as provided, without gates and validation. An existing object is replaced.
    pub(crate) fn put(&mut self, kind: &'static Kind, object: Value) -> WriteResult {
        let mut object = read(kind, object)?;
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
        let id = self.new_id(kind, &namespace, &object)?;
        let provided = object["metadata"].as_object().cloned().unwrap_or_default();
        match self.store.get(kind, &id) {
            Some(existing) => copy_server_metadata(&mut object, &existing.object),
            None => self.set_server_metadata(&mut object, &id),
        }
        // Unlike a client, the caller may set these.
        for key in ["uid", "deletionTimestamp"] {
            if let Some(value) = provided.get(key) {
                object["metadata"][key] = value.clone();
            }
        }
        Ok(self.store.insert(kind, id, Entry { object, applied_configs: [].into() }))
    }
}

/// Copies the metadata that clients cannot change from the old object.
pub(crate) fn copy_server_metadata(new: &mut Value, old: &Value) {
    for key in [
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generateName",
        "namespace",
        "resourceVersion",
        "generation",
    ] {
        match &old["metadata"][key] {
            Value::Null => {
                new["metadata"].as_object_mut().map(|metadata| metadata.remove(key));
            }
            value => new["metadata"][key] = value.clone(),
        }
    }
}

fn has_finalizers(object: &Value) -> bool {
    object["metadata"]["finalizers"].as_array().is_some_and(|finalizers| !finalizers.is_empty())
}

/// Applies a configuration. Fails on a conflict with another manager, unless `force` is set.
fn apply(
    (part, request): (Part, &ApiRequest),
    (object, applied): (&mut Value, &mut BTreeMap<FieldManager, Value>),
) -> Result<(), Refusal> {
    let manager = FieldManager::of(request, part)?;
    let mut conflicts = Vec::new();
    for (other, other_config) in
        applied.iter_mut().filter(|(other, _)| other.part == part && **other != manager)
    {
        let fields = patch::take_ownership(other_config, (&request.body, object), "");
        conflicts.extend(fields.into_iter().map(|field| (other.name.clone(), field)));
    }
    if !conflicts.is_empty() && !request.flag("force").unwrap_or_default() {
        return Err(Refusal::apply_conflict(part, &conflicts));
    }
    let old_config = applied.insert(manager, request.body.clone()).unwrap_or_default();
    patch::apply(object, (&request.body, &old_config), "");
    Ok(())
}

// === impl FieldManager ===

impl FieldManager {
    fn of(request: &ApiRequest, part: Part) -> Result<Self, Refusal> {
        match request.parameter("fieldManager") {
            "" => Err(Refusal::no_manager()),
            name => Ok(Self { name: name.to_owned(), part }),
        }
    }
}

/// Reads a body as an object of this kind, without unknown fields.
fn read(kind: &Kind, body: Value) -> WriteResult {
    let mut body = if body.is_object() { body } else { Value::Object(Map::new()) };
    body["apiVersion"] = kind.api_version().into();
    body["kind"] = kind.name.into();
    if kind.status == Status::Subresource && body["status"].is_null() {
        body.as_object_mut().map(|fields| fields.remove("status"));
    }
    kind.drop_unknown_fields(body).map_err(|error| {
        let description = format!("{} in version {:?}", kind.name, kind.version);
        Refusal::bad_request(format!("{description} cannot be handled as a {}: {error}", kind.name))
    })
}
