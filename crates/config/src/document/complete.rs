//! Merge of two maps: absent keys are copied from the other map.

use super::tree::{Key, Value, YamlNode};

// === impl YamlNode ===

impl YamlNode {
    /// The items of a key's list.
    pub(crate) fn items_mut(&mut self, name: &str) -> &mut [Self] {
        let Value::Map(entries) = &mut self.value else { return &mut [] };
        let found = entries.iter_mut().find(|(key, _)| key.text == name);
        match found.map(|(_, node)| &mut node.value) {
            Some(Value::List(items)) => items,
            _ => &mut [],
        }
    }

    /// Copies the keys that this map lacks from another map, as if they were written on the first line of this map. For
    /// a key in `within` that both maps have, the values are merged in the same way.
    pub(crate) fn complete(&mut self, from: &Self, within: &[&str]) {
        let line = self.line;
        let (Value::Map(own), Value::Map(others)) = (&mut self.value, &from.value) else { return };
        for (key, value) in others {
            match own.iter_mut().find(|(own_key, _)| own_key.text == key.text) {
                None => {
                    let mut copy = value.clone();
                    copy.move_to(line);
                    own.push((Key { line, text: key.text.clone() }, copy));
                }
                Some((own_key, own_value)) if within.contains(&own_key.text.as_str()) => {
                    own_value.complete(value, &[]);
                }
                Some(_) => {}
            }
        }
    }

    /// Assigns new unique ids to all nodes.
    pub(crate) fn renumber(&mut self) {
        self.number(&mut 0);
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
