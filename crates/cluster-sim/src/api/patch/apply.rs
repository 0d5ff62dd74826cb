//! Server-side apply. Each manager's last configuration is kept. A field that a manager no longer names is removed. A
//! field that another manager applied is a conflict.

use serde_json::{Map, Value};

use super::lists::{Entries, applied, below};

/// Applies a configuration at a path, given the previous one of the same manager.
pub(crate) fn apply(target: &mut Value, (config, before): (&Value, &Value), path: &str) {
    let Some(config) = config.as_object() else {
        *target = config.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let target = target.as_object_mut().expect("made so above");
    for dropped in before.as_object().into_iter().flatten().map(|(key, _)| key) {
        if !config.contains_key(dropped) {
            remove(target, (dropped, &before[dropped]), path);
        }
    }
    for (key, value) in config {
        let path = below(path, key);
        let (slot, before) = (target.entry(key).or_insert(Value::Null), &before[key]);
        match (applied(&path), value.as_array()) {
            (Some(entries), Some(items)) => apply_items(slot, (items, before), (entries, &path)),
            _ => apply(slot, (value, before), &path),
        }
    }
}

/// Removes a field that a manager owned. Of an object or a list only the manager's own parts go.
fn remove(target: &mut Map<String, Value>, (key, owned): (&str, &Value), path: &str) {
    let Some(slot) = target.get_mut(key) else { return };
    let path = below(path, key);
    match (applied(&path), owned) {
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
    (entries, path): (Entries, &str),
) {
    let before = before.as_array().map_or(&[][..], Vec::as_slice);
    let mut kept = target.as_array().cloned().unwrap_or_default();
    kept.retain(|known| {
        let was_mine = before.iter().any(|old| entries.same(old, known));
        !was_mine || items.iter().any(|item| entries.same(item, known))
    });
    for item in items {
        let old = before.iter().find(|old| entries.same(old, item)).unwrap_or(&Value::Null);
        match kept.iter_mut().find(|known| entries.same(known, item)) {
            Some(known) => apply(known, (item, old), path),
            None => kept.push(item.clone()),
        }
    }
    *target = Value::Array(kept);
}

/// Removes the fields that this configuration changes from another manager's, and returns their paths.
pub(crate) fn take_over(
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
        let (path, live) = (below(path, key), &live[key]);
        match (applied(&path), value, &mut *theirs) {
            (_, Value::Object(_), Value::Object(_)) => {
                taken.extend(take_over(theirs, (value, live), &path));
            }
            (Some(entries), Value::Array(items), Value::Array(theirs)) => {
                for item in items {
                    let same = |it: &&Value| entries.same(it, item);
                    let live = live.as_array().and_then(|live| live.iter().find(same));
                    if let Some(theirs) = theirs.iter_mut().find(|it| entries.same(it, item)) {
                        let live = live.unwrap_or(&Value::Null);
                        taken.extend(take_over(theirs, (item, live), &path));
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

// === impl Entries ===

impl Entries {
    fn same(self, a: &Value, b: &Value) -> bool {
        match self {
            Self::By(keys) => keys.iter().all(|key| a[*key] == b[*key]),
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
    fn devices_of_a_slice_are_a_list_that_is_replaced_whole() {
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
        let taken = take_over(&mut theirs, (&labels("1", "2"), &labels("1", "1")), "");
        assert_eq!(taken, [".metadata.labels.b"]);
        assert_eq!(theirs, json!({"metadata": {"labels": {"a": "1"}}}));
        let mut theirs = status(&[device("mine", 1)]);
        let config = (&status(&[device("mine", 2)]), &status(&[device("mine", 1)]));
        assert_eq!(take_over(&mut theirs, config, ""), [".status.devices.data.x"]);
    }
}
