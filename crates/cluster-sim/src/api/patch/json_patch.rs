//! JSON patches (RFC 6902).

use serde_json::Value;

/// Applies the operations of a patch in order. Stops at the first failure with the API server's message; then `target`
/// is partly patched, and the caller must discard it.
pub(crate) fn apply_operations(target: &mut Value, operations: &Value) -> Result<(), String> {
    let operations = operations.as_array().ok_or("a JSON patch is a list of operations")?;
    operations.iter().try_for_each(|operation| apply_operation(target, operation))
}

fn apply_operation(target: &mut Value, operation: &Value) -> Result<(), String> {
    let text = |key: &str| operation[key].as_str().unwrap_or_default();
    let (op, path, from) = (text("op"), text("path"), text("from"));
    let missing_path = || format!("{op} operation does not apply: doc is missing path: {path:?}");
    match op {
        "add" => add(target, path, operation["value"].clone()),
        "remove" => remove(target, path).map(drop),
        "replace" => target.pointer_mut(path).map(|slot| *slot = operation["value"].clone()),
        "move" => remove(target, from).and_then(|value| add(target, path, value)),
        "copy" => target.pointer(from).cloned().and_then(|value| add(target, path, value)),
        "test" if target.pointer(path).is_some_and(|value| *value == operation["value"]) => {
            Some(())
        }
        "test" => return Err(format!("testing value {path} failed")),
        _ => return Err(format!("unexpected kind: {op}")),
    }
    .ok_or_else(missing_path)
}

fn add(target: &mut Value, path: &str, value: Value) -> Option<()> {
    let Some((parent, key)) = split(path) else {
        *target = value;
        return Some(());
    };
    match target.pointer_mut(parent)? {
        Value::Object(fields) => drop(fields.insert(key, value)),
        Value::Array(items) if key == "-" => items.push(value),
        Value::Array(items) => {
            let index = key.parse().ok().filter(|index| *index <= items.len())?;
            items.insert(index, value);
        }
        _ => return None,
    }
    Some(())
}

fn remove(target: &mut Value, path: &str) -> Option<Value> {
    let (parent, key) = split(path)?;
    match target.pointer_mut(parent)? {
        Value::Object(fields) => fields.remove(&key),
        Value::Array(items) => {
            let index = key.parse().ok().filter(|index| *index < items.len())?;
            Some(items.remove(index))
        }
        _ => None,
    }
}

/// Splits a path into the parent's path and the unescaped key (RFC 6901).
fn split(path: &str) -> Option<(&str, String)> {
    let (parent, key) = path.rsplit_once('/')?;
    Some((parent, key.replace("~1", "/").replace("~0", "~")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn operations_apply_in_order() {
        let mut target = json!({"labels": {"a": "1"}, "list": [1, 2]});
        let operations = json!([
            {"op": "test", "path": "/labels/a", "value": "1"},
            {"op": "add", "path": "/labels/x.y~1z", "value": "2"},
            {"op": "replace", "path": "/labels/a", "value": "3"},
            {"op": "add", "path": "/list/-", "value": 3},
            {"op": "remove", "path": "/list/0"},
            {"op": "copy", "from": "/labels/a", "path": "/copied"},
            {"op": "move", "from": "/copied", "path": "/moved"},
        ]);
        assert_eq!(apply_operations(&mut target, &operations), Ok(()));
        let expected = json!({"labels": {"a": "3", "x.y/z": "2"}, "list": [2, 3], "moved": "3"});
        assert_eq!(target, expected);
    }

    #[test]
    fn a_failed_operation_is_reported() {
        for (operation, expected) in [
            (json!({"op": "remove", "path": "/no"}), "missing path: \"/no\""),
            (json!({"op": "test", "path": "/a", "value": 2}), "testing value /a failed"),
            (json!({"op": "jump", "path": "/a"}), "unexpected kind: jump"),
        ] {
            let reason = apply_operations(&mut json!({"a": 1}), &json!([operation]))
                .expect_err("the operation fails");
            assert!(reason.contains(expected), "{reason}");
        }
    }
}
