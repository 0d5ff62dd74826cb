//! Server-side apply. The store has the last configuration of each manager. A field that is missing from a manager's
//! new configuration is removed. A changed field that another manager applied is a conflict.

use serde_json::{Map, Value};

use super::lists::{EntryIdentity, apply_identity, child_path};

/// Applies a configuration at a path, given the previous one of the same manager.
pub(crate) fn apply(target: &mut Value, (config, old_config): (&Value, &Value), path: &str) {
    let Some(config) = config.as_object() else {
        *target = config.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let target = target.as_object_mut().expect("made an object above");
    for removed_key in old_config.as_object().into_iter().flatten().map(|(key, _)| key) {
        if !config.contains_key(removed_key) {
            remove(target, (removed_key, &old_config[removed_key]), path);
        }
    }
    for (key, value) in config {
        let path = child_path(path, key);
        let (slot, old_config) = (target.entry(key).or_insert(Value::Null), &old_config[key]);
        match (apply_identity(&path), value.as_array()) {
            (Some(entries), Some(items)) => {
                apply_items(slot, (items, old_config), (entries, &path));
            }
            _ => apply(slot, (value, old_config), &path),
        }
    }
}

/// Removes a field that a manager owned. In an object or a list, only the manager's own entries are removed.
fn remove(target: &mut Map<String, Value>, (key, owned_value): (&str, &Value), path: &str) {
    let Some(slot) = target.get_mut(key) else { return };
    let path = child_path(path, key);
    match (apply_identity(&path), owned_value) {
        (Some(entries), Value::Array(_)) => apply_items(slot, (&[], owned_value), (entries, &path)),
        (_, Value::Object(_)) => apply(slot, (&Value::Object(Map::new()), owned_value), &path),
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
    (items, old_items): (&[Value], &Value),
    (entries, path): (EntryIdentity, &str),
) {
    let old_items = old_items.as_array().map_or(&[][..], Vec::as_slice);
    let mut merged_items = target.as_array().cloned().unwrap_or_default();
    merged_items.retain(|existing| {
        let was_applied = old_items.iter().any(|old_item| entries.same(old_item, existing));
        !was_applied || items.iter().any(|item| entries.same(item, existing))
    });
    for item in items {
        let old_item =
            old_items.iter().find(|old_item| entries.same(old_item, item)).unwrap_or(&Value::Null);
        match merged_items.iter_mut().find(|existing| entries.same(existing, item)) {
            Some(existing) => apply(existing, (item, old_item), path),
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
    let (Some(fields), Some(other_fields)) = (config.as_object(), other.as_object_mut()) else {
        return Vec::new();
    };
    let mut conflicts = Vec::new();
    for (key, value) in fields {
        let Some(other_value) = other_fields.get_mut(key) else { continue };
        let (path, live) = (child_path(path, key), &live[key]);
        match (apply_identity(&path), value, &mut *other_value) {
            (_, Value::Object(_), Value::Object(_)) => {
                conflicts.extend(take_ownership(other_value, (value, live), &path));
            }
            (Some(entries), Value::Array(items), Value::Array(other_items)) => {
                for item in items {
                    let is_same_entry = |live: &&Value| entries.same(live, item);
                    let live = live.as_array().and_then(|live| live.iter().find(is_same_entry));
                    if let Some(other_value) =
                        other_items.iter_mut().find(|entry| entries.same(entry, item))
                    {
                        let live = live.unwrap_or(&Value::Null);
                        conflicts.extend(take_ownership(other_value, (item, live), &path));
                    }
                }
            }
            _ if value != live => {
                other_fields.remove(key);
                conflicts.push(format!(".{path}"));
            }
            _ => {}
        }
    }
    conflicts
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
        let old_config = status(&[device("mine", 1)]);
        let new_config = status(&[device("mine", 2), device("new", 3)]);
        apply(&mut target, (&new_config, &old_config), "");
        assert_eq!(target, status(&[device("other", 1), device("mine", 2), device("new", 3)]));
        apply(&mut target, (&json!({}), &new_config), "");
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
        let mut other_config = labels("1", "1");
        let conflicts =
            take_ownership(&mut other_config, (&labels("1", "2"), &labels("1", "1")), "");
        assert_eq!(conflicts, [".metadata.labels.b"]);
        assert_eq!(other_config, json!({"metadata": {"labels": {"a": "1"}}}));
        let mut other_config = status(&[device("mine", 1)]);
        let config = (&status(&[device("mine", 2)]), &status(&[device("mine", 1)]));
        assert_eq!(take_ownership(&mut other_config, config, ""), [".status.devices.data.x"]);
    }
}
