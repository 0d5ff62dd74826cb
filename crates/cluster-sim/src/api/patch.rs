//! The four types of patches. JSON merge patches are here, the others in submodules.

mod apply;
mod json_patch;
mod lists;
mod strategic;

use serde_json::{Map, Value};

pub(crate) use self::{
    apply::{apply, take_ownership},
    json_patch::apply_operations,
    strategic::merge as merge_strategically,
};

/// Applies a JSON merge patch (RFC 7386).
pub(crate) fn merge(target: &mut Value, patch: &Value) {
    let Some(patch) = patch.as_object() else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let target = target.as_object_mut().expect("made an object above");
    for (key, value) in patch {
        if value.is_null() {
            target.remove(key);
        } else {
            merge(target.entry(key).or_insert(Value::Null), value);
        }
    }
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
}
