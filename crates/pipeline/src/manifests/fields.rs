//! Merging of the Kubernetes fields that a pipeline file adds to pods and containers.

use serde_json::{Map, Value, map::Entry};

/// Two stages of one pod set different values for a field. Holds the path of the field.
#[derive(Debug)]
pub(super) struct Conflict(pub(super) String);

/// Merges `fields` into the document: objects recursively, lists by appending; any other value replaces.
pub(super) fn overlay(document: &mut Value, fields: &Map<String, Value>) {
    let Value::Object(document) = document else { return };
    for (key, value) in fields {
        match (document.entry(key.as_str()), value) {
            (Entry::Occupied(mut existing), Value::Object(source))
                if existing.get().is_object() =>
            {
                overlay(existing.get_mut(), source);
            }
            (Entry::Occupied(mut existing), Value::Array(source)) => match existing.get_mut() {
                Value::Array(list) => list.extend(source.iter().cloned()),
                other => *other = value.clone(),
            },
            (Entry::Occupied(mut existing), value) => {
                existing.insert(value.clone());
            }
            (Entry::Vacant(place), value) => {
                place.insert(value.clone());
            }
        }
    }
}

/// Merges the fields of stages that share a pod: objects recursively, lists as a union; other values must be equal.
///
/// # Errors
///
/// A field has two values.
pub(super) fn merge(
    target: &mut Map<String, Value>,
    source: &Map<String, Value>,
) -> Result<(), Conflict> {
    for (key, value) in source {
        let with_parent = |Conflict(path)| Conflict(format!("{key}.{path}"));
        match (target.get_mut(key), value) {
            (None, value) => {
                target.insert(key.clone(), value.clone());
            }
            (Some(Value::Object(existing)), Value::Object(source)) => {
                merge(existing, source).map_err(with_parent)?;
            }
            (Some(Value::Array(existing)), Value::Array(source)) => {
                merge_lists(existing, source).map_err(with_parent)?;
            }
            (Some(existing), value) if existing == value => {}
            (Some(_), _) => return Err(Conflict(key.clone())),
        }
    }
    Ok(())
}

/// Adds the missing entries. Entries with the same name, such as volumes, must be equal.
fn merge_lists(target: &mut Vec<Value>, source: &[Value]) -> Result<(), Conflict> {
    for entry in source {
        let name = entry.get("name").and_then(Value::as_str);
        let has_same_name = |existing: &&Value| {
            *existing == entry || name.is_some() && existing["name"].as_str() == name
        };
        match target.iter().find(has_same_name) {
            Some(existing) if existing == entry => {}
            Some(_) => return Err(Conflict(name.unwrap_or_default().to_owned())),
            None => target.push(entry.clone()),
        }
    }
    Ok(())
}
