//! Small shapes of documents: events of watches, metadata alone, versions.

use serde_json::{Value, json};

use super::refusal::Refusal;

/// A line of a watch.
pub(crate) fn event(sort: &str, object: &Value, metadata_only: bool) -> Value {
    let object = if metadata_only { self::metadata_only(object) } else { object.clone() };
    json!({"type": sort, "object": object})
}

/// An object of which only the metadata is wanted.
pub(crate) fn metadata_only(object: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
        "metadata": object["metadata"],
    })
}

/// A version as clients send it back.
pub(crate) fn version(text: &str) -> Result<u64, Refusal> {
    text.parse()
        .map_err(|_| Refusal::bad_request(format!("Invalid value: {text:?}: not a version")))
}

/// The time now as objects have it.
pub(crate) fn now() -> String {
    let now = jiff::Timestamp::now();
    jiff::Timestamp::from_second(now.as_second()).expect("a second of now").to_string()
}
