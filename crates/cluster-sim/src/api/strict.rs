//! Field validation (`fieldValidation`): unknown fields are refused, reported as warnings, or dropped.

use serde_json::Value;

use super::{kind::Kind, refusal::Refusal, request::ApiRequest};

/// Refuses the unknown fields of an object, or returns warnings about them.
pub(crate) fn check(
    kind: &Kind,
    object: &Value,
    request: &ApiRequest,
) -> Result<Vec<String>, Refusal> {
    let validation = request.parameter("fieldValidation");
    let typed_object = match validation {
        "Ignore" => return Ok(Vec::new()),
        "" | "Warn" | "Strict" => kind.drop_unknown_fields(object.clone()).ok(),
        value => {
            let reason = format!("fieldValidation: Unsupported value: {value:?}");
            return Err(Refusal::bad_request(reason));
        }
    };
    // An object that cannot be deserialised is refused later.
    let Some(typed_object) = typed_object else { return Ok(Vec::new()) };
    let mut unknown_fields = Vec::new();
    compare(object, &typed_object, "", &mut unknown_fields);
    if validation == "Strict" && !unknown_fields.is_empty() {
        let (name, version, unknown_fields) = (kind.name, kind.version, unknown_fields.join(", "));
        return Err(Refusal::bad_request(format!(
            "{name} in version {version:?} cannot be handled as a {name}: strict decoding error: {unknown_fields}"
        )));
    }
    Ok(unknown_fields)
}

fn compare(object: &Value, typed_object: &Value, path: &str, unknown_fields: &mut Vec<String>) {
    match object {
        Value::Object(fields) => {
            for (key, value) in fields {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                match typed_object.get(key) {
                    Some(typed_object) => compare(value, typed_object, &path, unknown_fields),
                    // The typed object omits empty fields, so an empty field can be a known one.
                    None if is_empty(value) => {}
                    None => unknown_fields.push(format!("unknown field {path:?}")),
                }
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                compare(item, &typed_object[index], &format!("{path}[{index}]"), unknown_fields);
            }
        }
        _ => {}
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check_slice(validation: &str, object: &Value) -> Result<Vec<String>, String> {
        let query = [("fieldValidation".to_owned(), validation.to_owned())].into();
        let kind = Kind::find("resource.k8s.io", "v1", "resourceslices").expect("a kind");
        check(kind, object, &ApiRequest { query, ..ApiRequest::default() })
            .map_err(|refusal| refusal.message)
    }

    #[test]
    fn unknown_fields_are_refused_reported_or_dropped() {
        let slice = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
            "metadata": {"name": "s", "creationTimestamp": null},
            "spec": {"driver": "d", "pool": {"name": "p"}, "devices": [{"name": "a", "colour": "red"}]},
        });
        let unknown = "unknown field \"spec.devices[0].colour\"";
        let strict = check_slice("Strict", &slice).expect_err("refused");
        assert!(strict.ends_with(&format!("strict decoding error: {unknown}")), "{strict}");
        assert_eq!(check_slice("", &slice), Ok(vec![unknown.to_owned()]));
        assert_eq!(check_slice("Ignore", &slice), Ok(Vec::new()));
    }
}
