//! Server-side apply. The store has the last configuration of each manager. A field that is missing from a manager's
//! new configuration is removed. A changed field that another manager applied is a conflict.

use serde_json::{Map, Value};

use super::lists::{EntryIdentity, apply_identity, child_path};

/// Applies a configuration at a path, given the previous one of the same manager.
pub(crate) fn apply(target: &mut Value, (config, before): (&Value, &Value), path: &str) {
    let Some(config) = config.as_object() else {
        *target = config.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let target = target.as_object_mut().expect("made an object above");
    for dropped in before.as_object().into_iter().flatten().map(|(key, _)| key) {
        if !config.contains_key(dropped) {
            remove(target, (dropped, &before[dropped]), path);
        }
    }
    for (key, value) in config {
        let path = child_path(path, key);
        let (slot, before) = (target.entry(key).or_insert(Value::Null), &before[key]);
        match (apply_identity(&path), value.as_array()) {
            (Some(entries), Some(items)) => apply_items(slot, (items, before), (entries, &path)),
            _ => apply(slot, (value, before), &path),
        }
    }
}

/// Removes a field that a manager owned. In an object or a list, only the manager's own entries are removed.
fn remove(target: &mut Map<String, Value>, (key, owned): (&str, &Value), path: &str) {
    let Some(slot) = target.get_mut(key) else { return };
    let path = child_path(path, key);
    match (apply_identity(&path), owned) {
        (Some(entries), Value::Array(_)) => apply_items(slot, (&[], owned), (entries, &path)),
        (_, Value::Object(_)) => apply(slot, (&Value::Object(Map::new()), owned), &path),
        _ => *slot = Value::Null,
    }
    let is_empty = match slot {
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        other => other.is_null(),
    };
    if is_empty {
        target.remove(key);
    }
}

fn apply_items(
    target: &mut Value,
    (items, before): (&[Value], &Value),
    (entries, path): (EntryIdentity, &str),
) {
    let before = before.as_array().map_or(&[][..], Vec::as_slice);
    let mut merged_items = target.as_array().cloned().unwrap_or_default();
    merged_items.retain(|current| {
        let was_applied = before.iter().any(|old| entries.same(old, current));
        !was_applied || items.iter().any(|item| entries.same(item, current))
    });
    for item in items {
        let old = before.iter().find(|old| entries.same(old, item)).unwrap_or(&Value::Null);
        match merged_items.iter_mut().find(|current| entries.same(current, item)) {
            Some(current) => apply(current, (item, old), path),
            None => merged_items.push(item.clone()),
        }
    }
    *target = Value::Array(merged_items);
}

/// Removes the fields that `config` changes from another manager's configuration, and returns their paths.
pub(crate) fn take_ownership(
    other: &mut Value,
    (config, live): (&Value, &Value),
    path: &str,
) -> Vec<String> {
    let (Some(fields), Some(others)) = (config.as_object(), other.as_object_mut()) else {
        return Vec::new();
    };
    let mut taken = Vec::new();
    for (key, value) in fields {
        let Some(theirs) = others.get_mut(key) else { continue };
        let (path, live) = (child_path(path, key), &live[key]);
        match (apply_identity(&path), value, &mut *theirs) {
            (_, Value::Object(_), Value::Object(_)) => {
                taken.extend(take_ownership(theirs, (value, live), &path));
            }
            (Some(entries), Value::Array(items), Value::Array(theirs)) => {
                for item in items {
                    let same = |live: &&Value| entries.same(live, item);
                    let live = live.as_array().and_then(|live| live.iter().find(same));
                    if let Some(theirs) = theirs.iter_mut().find(|entry| entries.same(entry, item))
                    {
                        let live = live.unwrap_or(&Value::Null);
                        taken.extend(take_ownership(theirs, (item, live), &path));
                    }
                }
            }
            _ if value != live => {
                others.remove(key);
                taken.push(format!(".{path}"));
            }
            _ => {}
        }
    }
    taken
}

// === impl EntryIdentity ===

impl EntryIdentity {
    fn same(self, a: &Value, b: &Value) -> bool {
        match self {
            Self::Keyed(keys) => keys.iter().all(|key| a[*key] == b[*key]),
            Self::Set => a == b,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn device(name: &str, data: i64) -> Value {
        json!({"driver": "d", "pool": "p", "device": name, "data": {"x": data}})
    }

    fn status(devices: &[Value]) -> Value {
        json!({"status": {"devices": devices}})
    }

    #[test]
    fn applied_devices_are_merged_by_their_key_and_dropped_ones_removed() {
        let mut target = status(&[device("other", 1), device("mine", 1)]);
        let before = status(&[device("mine", 1)]);
        let now = status(&[device("mine", 2), device("new", 3)]);
        apply(&mut target, (&now, &before), "");
        assert_eq!(target, status(&[device("other", 1), device("mine", 2), device("new", 3)]));
        apply(&mut target, (&json!({}), &now), "");
        assert_eq!(target, status(&[device("other", 1)]));
    }

    #[test]
    fn devices_of_a_slice_are_replaced_as_a_whole() {
        let slice = |names: &[&str]| {
            let devices: Vec<_> = names.iter().map(|name| json!({"name": name})).collect();
            json!({"spec": {"devices": devices}})
        };
        let mut target = slice(&["a", "b"]);
        apply(&mut target, (&slice(&["c", "d"]), &Value::Null), "");
        assert_eq!(target, slice(&["c", "d"]));
    }

    #[test]
    fn fields_that_another_manager_applied_are_taken_over_by_name() {
        let labels = |a: &str, b: &str| json!({"metadata": {"labels": {"a": a, "b": b}}});
        let mut theirs = labels("1", "1");
        let taken = take_ownership(&mut theirs, (&labels("1", "2"), &labels("1", "1")), "");
        assert_eq!(taken, [".metadata.labels.b"]);
        assert_eq!(theirs, json!({"metadata": {"labels": {"a": "1"}}}));
        let mut theirs = status(&[device("mine", 1)]);
        let config = (&status(&[device("mine", 2)]), &status(&[device("mine", 1)]));
        assert_eq!(take_ownership(&mut theirs, config, ""), [".status.devices.data.x"]);
    }
}
