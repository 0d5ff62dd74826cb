//! Conversion of objects to the requested form, and the time format of objects.

use serde_json::{Value, json};

use super::{kind::Kind, media::Form, table};

/// Object in the requested form.
pub(crate) fn in_form(kind: &Kind, object: &Value, form: Form) -> Value {
    match form {
        Form::Full => object.clone(),
        Form::Metadata => metadata_only(object),
        Form::Table => {
            let version = object["metadata"]["resourceVersion"].clone();
            table::of(kind, &[object], &json!({"resourceVersion": version}))
        }
    }
}

/// The `PartialObjectMetadata` of an object.
pub(crate) fn metadata_only(object: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
        "metadata": object["metadata"],
    })
}

/// Current time in the format of objects.
pub(crate) fn now() -> String {
    let now = jiff::Timestamp::now();
    jiff::Timestamp::from_second(now.as_second())
        .expect("the current second is in range")
        .to_string()
}
