//! Kubernetes fields that a file adds to a stage's pod and container. Fields that Windlass writes are rejected.

use serde::Deserialize;
use serde_json::{Map, Value};
use windlass_config::{Diagnostic, document::Spanned};

use super::Diagnostics;
use crate::pipeline::Stage;

/// Fields of a pod's specification that Windlass writes.
const RESERVED_POD_FIELDS: [&str; 5] =
    ["affinity", "containers", "nodeName", "resourceClaims", "resources"];
/// Fields of a container that Windlass writes, each with the stage's key to use instead.
const RESERVED_CONTAINER_FIELDS: [(&str, &str); 5] = [
    ("args", "command"),
    ("command", "command"),
    ("image", "image"),
    ("name", "name"),
    ("ports", "port"),
];

/// Kubernetes fields as the file has them, with their line; `None` if the file has none.
pub(super) type Fields = Option<Spanned<Map<String, Value>>>;

/// Validates the fields and stores them in the stage.
pub(super) fn add(stage: &mut Stage, pod: Fields, container: Fields, errors: &mut Diagnostics) {
    if let Some(Spanned { line, value }) = pod {
        for key in RESERVED_POD_FIELDS.into_iter().filter(|key| value.contains_key(*key)) {
            let text = format!("pod: {key} is written by Windlass: remove it");
            errors.push(Diagnostic::new(line, text));
        }
        stage.node_selector = typed(&value, "nodeSelector", line, errors);
        stage.tolerations = typed(&value, "tolerations", line, errors);
        stage.pod = value;
    }
    if let Some(Spanned { line, value }) = container {
        for (key, stage_key) in
            RESERVED_CONTAINER_FIELDS.into_iter().filter(|(key, _)| value.contains_key(*key))
        {
            let text =
                format!("container: {key} is written by Windlass: use {stage_key} of the stage");
            errors.push(Diagnostic::new(line, text));
        }
        if value.get("resources").is_some_and(|resources| !are_limits(resources)) {
            let text = "container: resources: only limits of cpu and memory are allowed here: write cpus, memory and \
                        resource under `on`, where the plan reads them";
            errors.push(Diagnostic::new(line, text));
        }
        stage.container = value;
    }
}

/// True if the value has only `limits`, and those only of `cpu` and `memory`.
fn are_limits(resources: &Value) -> bool {
    let has_only = |value: &Value, keys: &[&str]| {
        value.as_object().is_some_and(|map| map.keys().all(|key| keys.contains(&key.as_str())))
    };
    has_only(resources, &["limits"])
        && resources.get("limits").is_none_or(|limits| has_only(limits, &["cpu", "memory"]))
}

/// Deserialises a field that the plan needs; the default if it is missing or invalid.
fn typed<T: Default + for<'de> Deserialize<'de>>(
    pod: &Map<String, Value>,
    key: &str,
    line: u64,
    errors: &mut Diagnostics,
) -> T {
    let Some(value) = pod.get(key) else { return T::default() };
    T::deserialize(value).unwrap_or_else(|error| {
        errors.push(Diagnostic::new(line, format!("pod: {key}: {error}")));
        T::default()
    })
}
