//! Fields of Kubernetes that a file has for a stage's pod and container: checked against those that Windlass writes.

use serde::Deserialize;
use serde_json::{Map, Value};
use windlass_config::{Diagnostic, document::Spanned};

use super::Found;
use crate::pipeline::Stage;

/// Fields of a pod's specification that are Windlass' own.
const OF_POD: [&str; 5] = ["affinity", "containers", "nodeName", "resourceClaims", "resources"];
/// Fields of a container that are Windlass' own, with the key of the stage that stands for them.
const OF_CONTAINER: [(&str, &str); 5] = [
    ("args", "command"),
    ("command", "command"),
    ("image", "image"),
    ("name", "name"),
    ("ports", "port"),
];

/// A map of a file that may be left out.
pub(super) type Fields = Option<Spanned<Map<String, Value>>>;

/// Takes the fields over into the stage.
pub(super) fn add(stage: &mut Stage, pod: Fields, container: Fields, found: &mut Found) {
    if let Some(Spanned { line, value }) = pod {
        for key in OF_POD.into_iter().filter(|key| value.contains_key(*key)) {
            let text = format!("pod: {key} is written by Windlass: remove it");
            found.push(Diagnostic::new(line, text));
        }
        stage.node_selector = typed(&value, "nodeSelector", line, found);
        stage.tolerations = typed(&value, "tolerations", line, found);
        stage.pod = value;
    }
    if let Some(Spanned { line, value }) = container {
        for (key, own) in OF_CONTAINER.into_iter().filter(|(key, _)| value.contains_key(*key)) {
            let text = format!("container: {key} is written by Windlass: use {own} of the stage");
            found.push(Diagnostic::new(line, text));
        }
        if value.get("resources").is_some_and(|resources| !are_limits(resources)) {
            let text = "container: resources: the plan has to know requests and devices: write cpus, memory and resource \
                        below on; limits of cpu and memory may be here";
            found.push(Diagnostic::new(line, text));
        }
        stage.container = value;
    }
}

/// True for limits of CPUs and memory alone.
fn are_limits(resources: &Value) -> bool {
    let has_only = |value: &Value, keys: &[&str]| {
        value.as_object().is_some_and(|all| all.keys().all(|key| keys.contains(&key.as_str())))
    };
    has_only(resources, &["limits"])
        && resources.get("limits").is_none_or(|limits| has_only(limits, &["cpu", "memory"]))
}

/// A field on which the plan depends.
fn typed<T: Default + for<'de> Deserialize<'de>>(
    pod: &Map<String, Value>,
    key: &str,
    line: u64,
    found: &mut Found,
) -> T {
    let Some(value) = pod.get(key) else { return T::default() };
    T::deserialize(value).unwrap_or_else(|error| {
        found.push(Diagnostic::new(line, format!("pod: {key}: {error}")));
        T::default()
    })
}
