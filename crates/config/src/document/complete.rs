//! Merge of two maps: absent keys are copied from the other map.

use super::tree::{Key, Value, YamlNode};

// === impl YamlNode ===

impl YamlNode {
    /// The items of a key's list.
    pub(crate) fn items_mut(&mut self, name: &str) -> &mut [Self] {
        let Value::Map(entries) = &mut self.value else { return &mut [] };
        let entry = entries.iter_mut().find(|(key, _)| key.text == name);
        match entry.map(|(_, node)| &mut node.value) {
            Some(Value::List(items)) => items,
            _ => &mut [],
        }
    }

    /// Copies the keys that this map lacks from another map, as if they were written on the first line of this map. For
    /// a key in `merged_keys` that both maps have, the values are merged in the same way, one level deep.
    pub(crate) fn merge_missing(&mut self, other: &Self, merged_keys: &[&str]) {
        let line = self.line;
        let (Value::Map(entries), Value::Map(other_entries)) = (&mut self.value, &other.value)
        else {
            return;
        };
        for (key, value) in other_entries {
            match entries.iter_mut().find(|(own_key, _)| own_key.text == key.text) {
                None => {
                    let mut copy = value.clone();
                    copy.move_to(line);
                    entries.push((Key { line, text: key.text.clone() }, copy));
                }
                Some((own_key, own_value)) if merged_keys.contains(&own_key.text.as_str()) => {
                    own_value.merge_missing(value, &[]);
                }
                Some(_) => {}
            }
        }
    }

    /// Assigns new unique ids to all nodes.
    pub(crate) fn renumber(&mut self) {
        self.assign_ids(&mut 0);
    }

    /// Moves the node to a line, with everything in it.
    fn move_to(&mut self, line: u64) {
        self.line = line;
        match &mut self.value {
            Value::List(items) => items.iter_mut().for_each(|item| item.move_to(line)),
            Value::Map(entries) => {
                for (key, value) in entries {
                    key.line = line;
                    value.move_to(line);
                }
            }
            _ => {}
        }
    }
}
