//! Fields of Kubernetes that the pipeline's file adds to pods and containers.

use serde_json::{Map, Value, map::Entry};

/// Two stages of one pod that want different values of a field.
#[derive(Debug)]
pub(super) struct Conflict(pub(super) String);

/// Lays fields over a document: objects by their keys, lists one after the other; any other value replaces.
pub(super) fn overlay(document: &mut Value, fields: &Map<String, Value>) {
    let Value::Object(document) = document else { return };
    for (key, value) in fields {
        match (document.entry(key.as_str()), value) {
            (Entry::Occupied(mut there), Value::Object(more)) if there.get().is_object() => {
                overlay(there.get_mut(), more);
            }
            (Entry::Occupied(mut there), Value::Array(more)) => match there.get_mut() {
                Value::Array(list) => list.extend(more.iter().cloned()),
                other => *other = value.clone(),
            },
            (Entry::Occupied(mut there), value) => {
                there.insert(value.clone());
            }
            (Entry::Vacant(place), value) => {
                place.insert(value.clone());
            }
        }
    }
}

/// Joins the fields of stages that share a pod: lists have the entries of both, and any other value is the same in both.
///
/// # Errors
///
/// The path of a field with two values.
pub(super) fn join(
    into: &mut Map<String, Value>,
    more: &Map<String, Value>,
) -> Result<(), Conflict> {
    for (key, value) in more {
        let below = |Conflict(path)| Conflict(format!("{key}.{path}"));
        match (into.get_mut(key), value) {
            (None, value) => {
                into.insert(key.clone(), value.clone());
            }
            (Some(Value::Object(there)), Value::Object(more)) => {
                join(there, more).map_err(below)?;
            }
            (Some(Value::Array(there)), Value::Array(more)) => {
                join_lists(there, more).map_err(below)?;
            }
            (Some(there), value) if there == value => {}
            (Some(_), _) => return Err(Conflict(key.clone())),
        }
    }
    Ok(())
}

/// Entries with one name, such as volumes, are one entry.
fn join_lists(into: &mut Vec<Value>, more: &[Value]) -> Result<(), Conflict> {
    for entry in more {
        let name = entry.get("name").and_then(Value::as_str);
        let same =
            |there: &&Value| *there == entry || name.is_some() && there["name"].as_str() == name;
        match into.iter().find(same) {
            Some(there) if there == entry => {}
            Some(_) => return Err(Conflict(name.unwrap_or_default().to_owned())),
            None => into.push(entry.clone()),
        }
    }
    Ok(())
}
