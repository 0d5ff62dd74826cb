//! Small shapes of documents: one object in the form that is wanted, metadata alone, the time.

use serde_json::{Value, json};

use super::{kind::Kind, media::Form, table};

/// One object in the form that is wanted.
pub(crate) fn one(kind: &Kind, object: &Value, form: Form) -> Value {
    match form {
        Form::Whole => object.clone(),
        Form::Metadata => metadata_only(object),
        Form::Table => {
            let version = object["metadata"]["resourceVersion"].clone();
            table::of(kind, &[object], &json!({"resourceVersion": version}))
        }
    }
}

/// An object of which only the metadata is wanted.
pub(crate) fn metadata_only(object: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
        "metadata": object["metadata"],
    })
}

/// The time now as objects have it.
pub(crate) fn now() -> String {
    let now = jiff::Timestamp::now();
    jiff::Timestamp::from_second(now.as_second()).expect("a second of now").to_string()
}
