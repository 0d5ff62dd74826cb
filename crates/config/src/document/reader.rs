//! Reads a tree into structs. What cannot be read is noted, left out, and reading begins again, so that
//! all mistakes are found and not only the first.

use std::{cell::RefCell, collections::BTreeSet, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{
        DeserializeSeed, Error as _, Expected, IntoDeserializer as _, MapAccess, SeqAccess,
        Unexpected, Visitor,
        value::{StrDeserializer, U64Deserializer},
    },
    forward_to_deserialize_any,
};

use super::{
    Remark,
    lined::{LINED, MANY},
    tree::{Key, Node, Value},
    words,
};

/// What became of a document.
#[derive(Debug)]
pub struct Reading<T> {
    /// What could be read; nothing, if the document is none of its kind at all.
    pub value: Option<T>,
    /// What is wrong, in the order of the lines.
    pub mistakes: Vec<Remark>,
    /// What is ignored, in the order of the lines.
    pub ignored: Vec<Remark>,
}

/// What a key that no one knows is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnknownKeys {
    /// A mistake; keys are spelled exactly.
    #[default]
    Wrong,
    /// Ignored; capitals do not count, as in Go.
    Ignored,
}

/// Reads a document.
pub fn read<'n, T: Deserialize<'n>>(root: &'n Node, unknown: UnknownKeys) -> Reading<T> {
    let mut reader = Reader { unknown, ..Reader::default() };
    let mut mistakes = Vec::new();
    let value = loop {
        reader.notes.take();
        reader.maimed.take();
        let failure = match T::deserialize(Cursor { node: root, reader: &reader }) {
            Ok(value) => break Some(value),
            Err(failure) => failure.or_at(root),
        };
        // What lacks a part that was left out is wrong for that reason only.
        if !reader.maimed.borrow().contains(&failure.id) {
            mistakes.push(Remark::new(failure.line, failure.problem));
        }
        if failure.id == root.id || mistakes.len() >= MOST_MISTAKES {
            break None;
        }
        reader.omitted.insert(failure.id);
    };
    let Notes { wrong, mut ignored } = reader.notes.into_inner();
    mistakes.extend(wrong);
    mistakes.sort();
    ignored.sort();
    Reading { value, mistakes, ignored }
}

/// More are not read by anyone, and each costs another reading.
const MOST_MISTAKES: usize = 100;

/// What is known while reading.
#[derive(Default)]
struct Reader {
    unknown: UnknownKeys,
    /// Nodes that cannot be read.
    omitted: BTreeSet<u32>,
    /// Nodes that lack one of those.
    maimed: RefCell<BTreeSet<u32>>,
    notes: RefCell<Notes>,
}

#[derive(Default)]
struct Notes {
    wrong: Vec<Remark>,
    ignored: Vec<Remark>,
}

/// A place in the tree.
#[derive(Clone, Copy)]
struct Cursor<'n, 'r> {
    node: &'n Node,
    reader: &'r Reader,
}

/// Why a node cannot be read. Which one is known to whoever holds it.
#[derive(Debug)]
struct Failure {
    id: u32,
    line: u64,
    problem: String,
}

/// The line of a failure that is not placed yet.
const NOWHERE: u64 = 0;

// === impl Failure ===

impl Failure {
    fn or_at(self, node: &Node) -> Self {
        if self.line == NOWHERE { Self { id: node.id, line: node.line, ..self } } else { self }
    }
}

impl serde::de::Error for Failure {
    fn custom<T: fmt::Display>(problem: T) -> Self {
        let problem = problem.to_string();
        let problem = problem.lines().next().unwrap_or_default().to_owned();
        Self { id: 0, line: NOWHERE, problem }
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::custom(words::wrong_value(&found, expected))
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::custom(words::wrong_value(&found, expected))
    }

    fn unknown_variant(word: &str, known: &'static [&'static str]) -> Self {
        Self::custom(words::unknown_word(word, known))
    }

    fn unknown_field(name: &str, known: &'static [&'static str]) -> Self {
        Self::custom(words::unknown_field(name, known))
    }

    fn missing_field(name: &'static str) -> Self {
        Self::custom(format!("the key `{name}` is missing"))
    }
}

impl std::error::Error for Failure {}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problem)
    }
}

// === impl UnknownKeys ===

impl UnknownKeys {
    fn known(self, key: &str, fields: &'static [&'static str]) -> Option<&'static str> {
        let same = |field: &str| match self {
            Self::Wrong => field == key,
            Self::Ignored => field.eq_ignore_ascii_case(key),
        };
        fields.iter().copied().find(|field| same(field))
    }
}

// === impl Reader ===

impl Reader {
    /// Whether the node is left out of its parent.
    fn omits(&self, node: &Node, parent: &Node) -> bool {
        let omitted = self.omitted.contains(&node.id);
        if omitted {
            self.maimed.borrow_mut().insert(parent.id);
        }
        omitted
    }

    fn unknown_key(&self, key: &Key, fields: &'static [&'static str]) {
        let (name, mut notes) = (&key.text, self.notes.borrow_mut());
        match self.unknown {
            UnknownKeys::Wrong => {
                notes.wrong.push(Remark::new(key.line, words::unknown_field(name, fields)));
            }
            UnknownKeys::Ignored => {
                let fields: Vec<_> = fields.iter().map(|field| format!("`{field}`")).collect();
                let fields = fields.join(", ");
                let text = format!("unknown key `{name}` is ignored; known here are {fields}");
                notes.ignored.push(Remark::new(key.line, text));
            }
        }
    }

    fn repeated_key(&self, key: &Key, first: &Key) {
        let text = format!("`{}` is already on line {}: keep one", key.text, first.line);
        self.notes.borrow_mut().wrong.push(Remark::new(key.line, text));
    }
}

// === impl Cursor ===

impl<'n> Cursor<'n, '_> {
    fn at(self, node: &'n Node) -> Self {
        Self { node, ..self }
    }

    /// A map's entries under the names that a struct has for them.
    fn fields(self, entries: &'n [(Key, Node)], names: &'static [&'static str]) -> Fields<'n> {
        let mut known: Vec<(&'static str, &'n Key, &'n Node)> = Vec::new();
        for (key, node) in entries {
            match self.reader.unknown.known(&key.text, names) {
                None => self.reader.unknown_key(key, names),
                Some(name) => match known.iter().find(|(earlier, ..)| *earlier == name) {
                    Some((_, first, _)) => self.reader.repeated_key(key, first),
                    None if self.reader.omits(node, self.node) => {}
                    None => known.push((name, key, node)),
                },
            }
        }
        known.into_iter().map(|(name, _, node)| (name, node)).collect()
    }
}

/// What of a map is read into a struct.
type Fields<'n> = Vec<(&'static str, &'n Node)>;

impl<'n> Deserializer<'n> for Cursor<'n, '_> {
    type Error = Failure;

    fn deserialize_any<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, Failure> {
        let read = match &self.node.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Unsigned(value) => visitor.visit_u64(*value),
            Value::Signed(value) => visitor.visit_i64(*value),
            Value::Float(value) => visitor.visit_f64(*value),
            Value::Text(value) => visitor.visit_borrowed_str(value),
            Value::List(items) => visitor.visit_seq(Items { cursor: self, rest: items.iter() }),
            Value::Map(entries) => {
                let rest = entries.iter().map(|(key, node)| (key.text.as_str(), node)).collect();
                visitor.visit_map(Entries::new(self, rest))
            }
        };
        read.map_err(|failure: Failure| failure.or_at(self.node))
    }

    fn deserialize_option<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, Failure> {
        match self.node.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_str<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, Failure> {
        match self.node.text() {
            Some(text) => {
                visitor.visit_string(text).map_err(|failure: Failure| failure.or_at(self.node))
            }
            None => self.deserialize_any(visitor),
        }
    }

    fn deserialize_string<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, Failure> {
        self.deserialize_str(visitor)
    }

    fn deserialize_enum<V: Visitor<'n>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Failure> {
        let Some(text) = self.node.text() else { return self.deserialize_any(visitor) };
        let word: StrDeserializer<'_, Failure> = text.as_str().into_deserializer();
        visitor.visit_enum(word).map_err(|failure| failure.or_at(self.node))
    }

    fn deserialize_struct<V: Visitor<'n>>(
        self,
        _name: &'static str,
        names: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Failure> {
        let entries = match &self.node.value {
            Value::Map(entries) => entries.as_slice(),
            Value::Null => &[],
            // A struct would take its fields from a list, in the order of the code.
            Value::List(_) => {
                let unexpected = Unexpected::Other("a list");
                return Err(Failure::invalid_type(unexpected, &"keys with values").or_at(self.node));
            }
            _ => return self.deserialize_any(visitor),
        };
        let fields = self.fields(entries, names);
        let read = visitor.visit_map(Entries::new(self, fields));
        read.map_err(|failure| failure.or_at(self.node))
    }

    fn deserialize_newtype_struct<V: Visitor<'n>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Failure> {
        match (name, &self.node.value) {
            (LINED, _) => visitor.visit_seq(LineAndValue { cursor: self, given: 0 }),
            (MANY, Value::List(_)) => self.deserialize_any(visitor),
            (MANY, _) => visitor
                .visit_seq(Items { cursor: self, rest: std::slice::from_ref(self.node).iter() }),
            _ => visitor.visit_newtype_struct(self),
        }
    }

    forward_to_deserialize_any! {
        <W: Visitor<'n>>
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char bytes byte_buf unit unit_struct seq tuple
        tuple_struct map identifier ignored_any
    }
}

/// The items of a list.
struct Items<'n, 'r> {
    cursor: Cursor<'n, 'r>,
    rest: std::slice::Iter<'n, Node>,
}

impl<'n> SeqAccess<'n> for Items<'n, '_> {
    type Error = Failure;

    fn next_element_seed<T: DeserializeSeed<'n>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Failure> {
        let parent = self.cursor;
        let Some(node) = self.rest.find(|node| !parent.reader.omits(node, parent.node)) else {
            return Ok(None);
        };
        seed.deserialize(parent.at(node)).map(Some).map_err(|failure| failure.or_at(node))
    }
}

/// The entries of a map.
struct Entries<'n, 'r> {
    cursor: Cursor<'n, 'r>,
    rest: std::vec::IntoIter<(&'n str, &'n Node)>,
    value: Option<&'n Node>,
}

impl<'n, 'r> Entries<'n, 'r> {
    fn new(cursor: Cursor<'n, 'r>, entries: Vec<(&'n str, &'n Node)>) -> Self {
        Self { cursor, rest: entries.into_iter(), value: None }
    }
}

impl<'n> MapAccess<'n> for Entries<'n, '_> {
    type Error = Failure;

    fn next_key_seed<K: DeserializeSeed<'n>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Failure> {
        let Some((name, node)) = self.rest.next() else { return Ok(None) };
        self.value = Some(node);
        let name: StrDeserializer<'_, Failure> = name.into_deserializer();
        seed.deserialize(name).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'n>>(&mut self, seed: V) -> Result<V::Value, Failure> {
        let node = self.value.take().unwrap_or(self.cursor.node);
        seed.deserialize(self.cursor.at(node)).map_err(|failure| failure.or_at(node))
    }
}

/// The two parts of [`super::Lined`].
struct LineAndValue<'n, 'r> {
    cursor: Cursor<'n, 'r>,
    given: u8,
}

impl<'n> SeqAccess<'n> for LineAndValue<'n, '_> {
    type Error = Failure;

    fn next_element_seed<T: DeserializeSeed<'n>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Failure> {
        self.given += 1;
        match self.given {
            1 => {
                let line: U64Deserializer<Failure> = self.cursor.node.line.into_deserializer();
                seed.deserialize(line).map(Some)
            }
            2 => seed.deserialize(self.cursor).map(Some),
            _ => Ok(None),
        }
    }
}
