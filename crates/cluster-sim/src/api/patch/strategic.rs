//! Strategic merge patches, which `kubectl apply` sends for built-in kinds. List entries are merged, and directives
//! remove entries. The order of `$setElementOrder` is ignored.

use serde_json::{Map, Value};

use super::lists::{EntryIdentity, child_path, merge_identity};

const DIRECTIVE: &str = "$patch";
const RETAIN: &str = "$retainKeys";
const DELETE_VALUES: &str = "$deleteFromPrimitiveList/";

/// Merges a patch into the object at a path.
pub(crate) fn merge(target: &mut Value, changes: &Value, path: &str) {
    let Some(changes) = changes.as_object() else {
        *target = changes.clone();
        return;
    };
    if changes.contains_key(DIRECTIVE) || !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let target = target.as_object_mut().expect("made an object above");
    if changes.get(DIRECTIVE).is_some_and(|directive| directive == "delete") {
        return;
    }
    if let Some(retained_keys) = changes.get(RETAIN).and_then(Value::as_array) {
        target.retain(|key, _| retained_keys.iter().any(|retained_key| retained_key == key));
    }
    for (key, value) in changes {
        if let Some(list) = key.strip_prefix(DELETE_VALUES) {
            delete_values(target.get_mut(list), value);
        } else if key.starts_with('$') {
            // Other directives do not change the content.
        } else if value.is_null() {
            target.remove(key);
        } else {
            let path = child_path(path, key);
            let slot = target.entry(key).or_insert(Value::Null);
            match (merge_identity(&path), value.as_array()) {
                (Some(entries), Some(items)) => merge_items(slot, items, (entries, &path)),
                _ => merge(slot, value, &path),
            }
        }
    }
}

fn delete_values(list: Option<&mut Value>, values: &Value) {
    let values = values.as_array().map_or(&[][..], Vec::as_slice);
    if let Some(list) = list.and_then(Value::as_array_mut) {
        list.retain(|value| !values.contains(value));
    }
}

fn merge_items(slot: &mut Value, items: &[Value], (entries, path): (EntryIdentity, &str)) {
    let mut merged_items = slot.as_array().cloned().unwrap_or_default();
    if items.iter().any(|item| item[DIRECTIVE] == "replace") {
        merged_items.clear();
    }
    let items = items.iter().filter(|item| item[DIRECTIVE] != "replace");
    for item in items {
        let is_same_entry = |existing: &Value| match entries {
            EntryIdentity::Keyed(keys) => {
                keys.first().is_some_and(|key| existing[*key] == item[*key])
            }
            EntryIdentity::Set => existing == item,
        };
        if item[DIRECTIVE] == "delete" {
            merged_items.retain(|existing| !is_same_entry(existing));
        } else if let Some(existing) =
            merged_items.iter_mut().find(|existing| is_same_entry(existing))
        {
            merge(existing, item, path);
        } else {
            let mut new_item = Value::Null;
            merge(&mut new_item, item, path);
            merged_items.push(new_item);
        }
    }
    *slot = Value::Array(merged_items);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn entries_are_merged_by_their_key_and_directives_remove() {
        for (patch, expected) in [
            (
                json!({"containers": [{"name": "b", "image": "2"}, {"name": "c"}]}),
                json!({"containers": [{"name": "a"}, {"name": "b", "image": "2"}, {"name": "c"}]}),
            ),
            (
                json!({"containers": [{"name": "a", "$patch": "delete"}], "$setElementOrder/containers": []}),
                json!({"containers": [{"name": "b", "image": "1"}]}),
            ),
            (
                json!({"containers": [{"name": "c"}, {"$patch": "replace"}]}),
                json!({"containers": [{"name": "c"}]}),
            ),
            (json!({"containers": null, "nodeName": "n"}), json!({"nodeName": "n"})),
            (json!({"$patch": "replace", "nodeName": "n"}), json!({"nodeName": "n"})),
            (json!({"$retainKeys": ["nodeName"], "nodeName": "n"}), json!({"nodeName": "n"})),
        ] {
            let mut pod =
                json!({"spec": {"containers": [{"name": "a"}, {"name": "b", "image": "1"}]}});
            merge(&mut pod, &json!({"spec": patch}), "");
            assert_eq!(pod, json!({"spec": expected}), "{patch}");
        }
    }

    #[test]
    fn finalizers_are_a_set() {
        let mut object = json!({"metadata": {"finalizers": ["a", "b"]}});
        let patch = json!({"metadata": {"finalizers": ["c"], "$deleteFromPrimitiveList/finalizers": ["a"]}});
        merge(&mut object, &patch, "");
        assert_eq!(object, json!({"metadata": {"finalizers": ["b", "c"]}}));
    }
}
