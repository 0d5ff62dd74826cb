//! Patches: JSON merge patches, and server-side apply as far as claims and labels need it.
//!
//! Apply keeps what a manager applied last; what it no longer names is removed. Devices in a claim's
//! status are merged by driver, pool, device and share, other lists are replaced. No manager is refused
//! because another one owns a field.

use serde_json::{Map, Value};

/// The keys of the lists that are merged by entry.
const KEYED: [(&str, &[&str]); 2] =
    [("devices", &["driver", "pool", "device", "shareID"]), ("conditions", &["type"])];

/// Merges as RFC 7386 says.
pub(crate) fn merge(target: &mut Value, patch: &Value) {
    let Some(patch) = patch.as_object() else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let target = target.as_object_mut().expect("made so above");
    for (key, value) in patch {
        if value.is_null() {
            target.remove(key);
        } else {
            merge(target.entry(key).or_insert(Value::Null), value);
        }
    }
}

/// Applies a configuration, given what the same manager applied before.
pub(crate) fn apply(target: &mut Value, config: &Value, before: &Value) {
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
            remove(target, dropped, &before[dropped]);
        }
    }
    for (key, value) in config {
        let (slot, before) = (target.entry(key).or_insert(Value::Null), &before[key]);
        match (keys(key), value.as_array()) {
            (Some(keys), Some(items)) => apply_items(slot, (items, before), keys),
            _ => apply(slot, value, before),
        }
    }
}

/// Removes what a manager owned: a field, or of an object and a keyed list only its own parts.
fn remove(target: &mut Map<String, Value>, key: &str, owned: &Value) {
    let Some(slot) = target.get_mut(key) else { return };
    match (keys(key), owned) {
        (Some(keys), Value::Array(_)) => apply_items(slot, (&[], owned), keys),
        (_, Value::Object(_)) => apply(slot, &Value::Object(Map::new()), owned),
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

fn apply_items(target: &mut Value, (items, before): (&[Value], &Value), keys: &[&str]) {
    let same = |a: &Value, b: &Value| keys.iter().all(|key| a[*key] == b[*key]);
    let before = before.as_array().map_or(&[][..], Vec::as_slice);
    let mut kept = target.as_array().cloned().unwrap_or_default();
    kept.retain(|known| {
        let was_mine = before.iter().any(|old| same(old, known));
        !was_mine || items.iter().any(|item| same(item, known))
    });
    for item in items {
        let old = before.iter().find(|old| same(old, item)).unwrap_or(&Value::Null);
        match kept.iter_mut().find(|known| same(known, item)) {
            Some(known) => apply(known, item, old),
            None => kept.push(item.clone()),
        }
    }
    *target = Value::Array(kept);
}

fn keys(list: &str) -> Option<&'static [&'static str]> {
    KEYED.iter().find(|(name, _)| *name == list).map(|(_, keys)| *keys)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_merge_patch_sets_removes_and_replaces() {
        let mut target = json!({"a": {"b": 1, "c": 2}, "d": [1, 2]});
        merge(&mut target, &json!({"a": {"b": null, "e": 3}, "d": [3]}));
        assert_eq!(target, json!({"a": {"c": 2, "e": 3}, "d": [3]}));
    }

    #[test]
    fn applied_devices_are_merged_by_their_key_and_dropped_ones_removed() {
        let device = |name: &str, data: i64| json!({"driver": "d", "pool": "p", "device": name, "data": {"x": data}});
        let mut target = json!({"devices": [device("other", 1), device("mine", 1)]});
        let before = json!({"devices": [device("mine", 1)]});
        apply(&mut target, &json!({"devices": [device("mine", 2), device("new", 3)]}), &before);
        let expected =
            json!({"devices": [device("other", 1), device("mine", 2), device("new", 3)]});
        assert_eq!(target, expected);
        apply(&mut target, &json!({}), &json!({"devices": [device("mine", 2), device("new", 3)]}));
        assert_eq!(target, json!({"devices": [device("other", 1)]}));
    }
}
