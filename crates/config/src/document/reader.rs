//! Reads a tree into structs, and reports every error. A node that cannot be read is recorded and omitted; then
//! reading starts again.
//!
//! A tuple of structs is read from one map: each struct reads the keys that it knows.

use std::{cell::RefCell, collections::BTreeSet, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{
        DeserializeSeed, EnumAccess, Error as _, Expected, IntoDeserializer as _, MapAccess,
        SeqAccess, Unexpected, VariantAccess, Visitor,
        value::{StrDeserializer, U64Deserializer},
    },
    forward_to_deserialize_any,
};

use super::{
    Diagnostic, messages,
    spanned::{ONE_OR_MANY, SPANNED},
    tree::{Key, Value, YamlNode},
};

/// Result of reading a document.
#[derive(Debug)]
pub struct Reading<T> {
    /// The readable part; `None` if the root is unreadable, or if there are too many errors.
    pub value: Option<T>,
    /// Errors, in the order of the lines.
    pub errors: Vec<Diagnostic>,
    /// Ignored keys, in the order of the lines.
    pub ignored: Vec<Diagnostic>,
    /// Nodes that the value lacks, since they could not be read.
    pub(crate) omitted: BTreeSet<u32>,
}

/// Treatment of unknown keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnknownKeys {
    /// An error. Keys must be spelled exactly.
    #[default]
    Denied,
    /// Ignored. Keys match in any case, as in Go.
    Ignored,
}

/// Reads a document.
pub fn read<'n, T: Deserialize<'n>>(root: &'n YamlNode, unknown: UnknownKeys) -> Reading<T> {
    let mut reader = Reader { unknown, ..Reader::default() };
    let mut errors = Vec::new();
    let value = loop {
        reader.key_diagnostics.take();
        reader.incomplete.take();
        let failure = match T::deserialize(Cursor { node: root, reader: &reader, tuple_keys: None })
        {
            Ok(value) => break Some(value),
            Err(Failure { lacks_value: true, .. }) => continue,
            Err(failure) => failure.or_at(root),
        };
        // A node with an omitted child fails because of that child, so its failure is not reported.
        if !reader.incomplete.borrow().contains(&failure.id) {
            errors.push(Diagnostic::new(failure.line, failure.problem));
        }
        if failure.id == root.id || errors.len() >= MAX_ERRORS {
            break None;
        }
        reader.omitted.insert(failure.id);
    };
    let KeyDiagnostics { errors: key_errors, mut ignored } = reader.key_diagnostics.into_inner();
    errors.extend(key_errors);
    errors.sort();
    ignored.sort();
    Reading { value, errors, ignored, omitted: reader.omitted }
}

/// Maximum number of reported errors. Each error costs another pass.
const MAX_ERRORS: usize = 100;

/// State of a reading.
#[derive(Default)]
struct Reader {
    unknown: UnknownKeys,
    /// Nodes that cannot be read.
    omitted: BTreeSet<u32>,
    /// Nodes with an omitted child.
    incomplete: RefCell<BTreeSet<u32>>,
    /// Keys, by struct and name, that count as absent if they have no value. serde does not report which keys accept
    /// null, so a key enters this set at its first failure.
    keys_without_value: RefCell<BTreeSet<(&'static str, String)>>,
    key_diagnostics: RefCell<KeyDiagnostics>,
}

/// Diagnostics about keys, collected anew in each pass.
#[derive(Default)]
struct KeyDiagnostics {
    errors: Vec<Diagnostic>,
    ignored: Vec<Diagnostic>,
}

/// Position in the tree.
#[derive(Clone, Copy)]
struct Cursor<'n, 'r> {
    node: &'n YamlNode,
    reader: &'r Reader,
    /// Known keys of the structs of a tuple, which are read from this node together; `None` for a single struct.
    tuple_keys: Option<&'r RefCell<Vec<&'static str>>>,
}

/// Reason that a node cannot be read. The caller adds the node's id and line.
#[derive(Debug, Default)]
struct Failure {
    id: u32,
    line: u64,
    problem: String,
    /// A required key that is absent.
    missing: Option<&'static str>,
    /// True if a list was expected: a list without a value is an error.
    expected_list: bool,
    /// True if the cause is a key without a value. Such a key counts as absent in the next pass.
    lacks_value: bool,
}

/// Line of a failure whose node is not known yet.
const NO_LINE: u64 = 0;

// === impl Failure ===

impl Failure {
    /// This failure with the id and line of a node, unless it has them already.
    fn or_at(self, node: &YamlNode) -> Self {
        if self.line == NO_LINE { Self { id: node.id, line: node.line, ..self } } else { self }
    }
}

impl serde::de::Error for Failure {
    fn custom<T: fmt::Display>(problem: T) -> Self {
        let problem = problem.to_string();
        let problem = problem.lines().next().unwrap_or_default().to_owned();
        Self { problem, ..Self::default() }
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let expected_list = expected.to_string() == "a sequence";
        Self { expected_list, ..Self::custom(messages::wrong_value(&found, expected)) }
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::custom(messages::wrong_value(&found, expected))
    }

    fn unknown_variant(word: &str, known: &'static [&'static str]) -> Self {
        Self::custom(messages::unknown_word(word, known))
    }

    fn unknown_field(name: &str, known: &'static [&'static str]) -> Self {
        Self::custom(messages::unknown_field(name, known))
    }

    fn missing_field(name: &'static str) -> Self {
        let missing = Some(name);
        Self { missing, ..Self::custom(format!("the key `{name}` is missing")) }
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
    fn match_key(self, key: &str, fields: &[&'static str]) -> Option<&'static str> {
        let is_match = |field: &str| match self {
            Self::Denied => field == key,
            Self::Ignored => field.eq_ignore_ascii_case(key),
        };
        fields.iter().copied().find(|field| is_match(field))
    }
}

// === impl Reader ===

impl Reader {
    /// True for an omitted node. Its parent is then incomplete.
    fn omits(&self, node: &YamlNode, parent: &YamlNode) -> bool {
        let is_omitted = self.omitted.contains(&node.id);
        if is_omitted {
            self.incomplete.borrow_mut().insert(parent.id);
        }
        is_omitted
    }

    fn unknown_key(&self, key: &Key, fields: &[&str]) {
        let (name, mut key_diagnostics) = (&key.text, self.key_diagnostics.borrow_mut());
        match self.unknown {
            UnknownKeys::Denied => {
                key_diagnostics
                    .errors
                    .push(Diagnostic::new(key.line, messages::unknown_field(name, fields)));
            }
            UnknownKeys::Ignored => {
                let fields: Vec<_> = fields.iter().map(|field| format!("`{field}`")).collect();
                let fields = fields.join(", ");
                let text = format!("unknown key `{name}` is ignored; known here are {fields}");
                key_diagnostics.ignored.push(Diagnostic::new(key.line, text));
            }
        }
    }

    fn repeated_key(&self, key: &Key, first: &Key) {
        let text = format!("`{}` is already on line {}: keep one", key.text, first.line);
        self.key_diagnostics.borrow_mut().errors.push(Diagnostic::new(key.line, text));
    }
}

// === impl Cursor ===

impl<'n, 'r> Cursor<'n, 'r> {
    fn at(self, node: &'n YamlNode) -> Self {
        Self { node, tuple_keys: None, ..self }
    }

    /// Entries of a map that the struct `struct_name` knows, under the struct's field names.
    fn fields(
        self,
        struct_name: &'static str,
        entries: &'n [(Key, YamlNode)],
        names: &'static [&'static str],
    ) -> Fields<'n> {
        let mut fields: Vec<(&'static str, &'n Key, &'n YamlNode)> = Vec::new();
        for (key, node) in entries {
            let Some(name) = self.reader.unknown.match_key(&key.text, names) else { continue };
            let lacks_value = || {
                self.reader.keys_without_value.borrow().contains(&(struct_name, name.to_owned()))
            };
            match fields.iter().find(|(earlier, ..)| *earlier == name) {
                Some((_, first_key, _)) => self.reader.repeated_key(key, first_key),
                None if self.reader.omits(node, self.node) => {}
                None if matches!(node.value, Value::Null) && lacks_value() => {}
                None => fields.push((name, key, node)),
            }
        }
        match self.tuple_keys {
            Some(tuple_keys) => tuple_keys.borrow_mut().extend(names),
            None => self.unknown_keys(entries, names),
        }
        fields.into_iter().map(|(name, _, node)| (name, node)).collect()
    }

    /// The map from which a struct is read. serde's own structs also accept a list, in the order of the fields.
    fn map(self) -> Result<&'n [(Key, YamlNode)], Failure> {
        match &self.node.value {
            Value::Map(entries) => Ok(entries),
            Value::Null => Ok(&[]),
            _ => {
                Err(Failure::invalid_type(self.unexpected(), &"keys with values").or_at(self.node))
            }
        }
    }

    fn entries(
        self,
        struct_name: &'static str,
        entries: Vec<(&'n str, &'n YamlNode)>,
    ) -> Entries<'n, 'r> {
        Entries { cursor: self, struct_name, rest: entries.into_iter(), value: None }
    }

    fn unexpected(self) -> Unexpected<'n> {
        match &self.node.value {
            Value::Null => Unexpected::Unit,
            Value::Bool(value) => Unexpected::Bool(*value),
            Value::Unsigned(value) => Unexpected::Unsigned(*value),
            Value::Signed(value) => Unexpected::Signed(*value),
            Value::Float(value) => Unexpected::Float(*value),
            Value::Text(value) => Unexpected::Str(value),
            Value::List(_) => Unexpected::Seq,
            Value::Map(_) => Unexpected::Map,
        }
    }

    fn unknown_keys(self, entries: &[(Key, YamlNode)], names: &[&'static str]) {
        let is_unknown = |key: &&Key| self.reader.unknown.match_key(&key.text, names).is_none();
        for key in entries.iter().map(|(key, _)| key).filter(is_unknown) {
            self.reader.unknown_key(key, names);
        }
    }

    /// Adds a line to a failure of a struct: the line of a required key without a value, else the line of the map.
    fn with_line(self, failure: Failure) -> Failure {
        let missing = failure.missing.and_then(|name| Some((name, self.node.child(name)?)));
        let without_value = missing.filter(|(_, node)| {
            matches!(node.value, Value::Null) && !self.reader.omitted.contains(&node.id)
        });
        match without_value {
            Some((name, node)) => {
                let problem = format!("nothing is written here, and `{name}` cannot be left out");
                Failure::custom(problem).or_at(node)
            }
            None => failure.or_at(self.node),
        }
    }
}

/// The entries of a map that a struct reads.
type Fields<'n> = Vec<(&'static str, &'n YamlNode)>;

impl<'n> Deserializer<'n> for Cursor<'n, '_> {
    type Error = Failure;

    fn deserialize_any<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, Failure> {
        let result = match &self.node.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Unsigned(value) => visitor.visit_u64(*value),
            Value::Signed(value) => visitor.visit_i64(*value),
            Value::Float(value) => visitor.visit_f64(*value),
            Value::Text(value) => visitor.visit_borrowed_str(value),
            Value::List(items) => visitor.visit_seq(Items { cursor: self, rest: items.iter() }),
            Value::Map(entries) => {
                let named_nodes: Vec<_> =
                    entries.iter().map(|(key, node)| (key.text.as_str(), node)).collect();
                visitor.visit_map(self.entries("", named_nodes))
            }
        };
        result.map_err(|failure: Failure| failure.or_at(self.node))
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
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Failure> {
        if let Value::Map(entries) = &self.node.value {
            return match self.fields(name, entries, variants)[..] {
                [(variant, node)] => visitor.visit_enum(OneKey { cursor: self.at(node), variant }),
                _ => Err(Failure::custom(format!("write one of {}", variants.join(", ")))),
            }
            .map_err(|failure| failure.or_at(self.node));
        }
        let Some(text) = self.node.text() else { return self.deserialize_any(visitor) };
        let word: StrDeserializer<'_, Failure> = text.as_str().into_deserializer();
        visitor.visit_enum(word).map_err(|failure| failure.or_at(self.node))
    }

    fn deserialize_struct<V: Visitor<'n>>(
        self,
        name: &'static str,
        names: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Failure> {
        let entries = self.map()?;
        let fields = self.fields(name, entries, names);
        let result = visitor.visit_map(self.entries(name, fields));
        result.map_err(|failure| self.with_line(failure))
    }

    fn deserialize_tuple<V: Visitor<'n>>(
        self,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, Failure> {
        let entries = self.map()?;
        let names = RefCell::default();
        let parts = Parts { cursor: Cursor { tuple_keys: Some(&names), ..self }, remaining: len };
        let value = visitor.visit_seq(parts)?;
        self.unknown_keys(entries, &names.borrow());
        Ok(value)
    }

    fn deserialize_newtype_struct<V: Visitor<'n>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Failure> {
        match (name, &self.node.value) {
            (SPANNED, _) => visitor.visit_seq(LineAndValue { cursor: self, position: 0 }),
            (ONE_OR_MANY, Value::List(_)) => self.deserialize_any(visitor),
            (ONE_OR_MANY, _) => visitor
                .visit_seq(Items { cursor: self, rest: std::slice::from_ref(self.node).iter() }),
            _ => visitor.visit_newtype_struct(self),
        }
    }

    forward_to_deserialize_any! {
        <W: Visitor<'n>>
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char bytes byte_buf unit unit_struct seq
        tuple_struct map identifier ignored_any
    }
}

struct Items<'n, 'r> {
    cursor: Cursor<'n, 'r>,
    rest: std::slice::Iter<'n, YamlNode>,
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

struct Entries<'n, 'r> {
    cursor: Cursor<'n, 'r>,
    /// Name of the struct that is read; empty for a map.
    struct_name: &'static str,
    rest: std::vec::IntoIter<(&'n str, &'n YamlNode)>,
    value: Option<(&'n str, &'n YamlNode)>,
}

impl<'n> MapAccess<'n> for Entries<'n, '_> {
    type Error = Failure;

    fn next_key_seed<K: DeserializeSeed<'n>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Failure> {
        let Some((name, node)) = self.rest.next() else { return Ok(None) };
        self.value = Some((name, node));
        let name: StrDeserializer<'_, Failure> = name.into_deserializer();
        seed.deserialize(name).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'n>>(&mut self, seed: V) -> Result<V::Value, Failure> {
        let (name, node) = self.value.take().unwrap_or(("", self.cursor.node));
        seed.deserialize(self.cursor.at(node)).map_err(|failure| {
            let failure = failure.or_at(node);
            let lacks_value = !self.struct_name.is_empty()
                && matches!(node.value, Value::Null)
                && failure.id == node.id
                && !failure.expected_list;
            if lacks_value {
                self.cursor
                    .reader
                    .keys_without_value
                    .borrow_mut()
                    .insert((self.struct_name, name.to_owned()));
            }
            Failure { lacks_value: lacks_value || failure.lacks_value, ..failure }
        })
    }
}

/// A map of one key as a variant of an enum.
struct OneKey<'n, 'r> {
    cursor: Cursor<'n, 'r>,
    variant: &'static str,
}

impl<'n, 'r> EnumAccess<'n> for OneKey<'n, 'r> {
    type Error = Failure;
    type Variant = Cursor<'n, 'r>;

    fn variant_seed<V: DeserializeSeed<'n>>(
        self,
        seed: V,
    ) -> Result<(V::Value, Cursor<'n, 'r>), Failure> {
        let variant: StrDeserializer<'_, Failure> = self.variant.into_deserializer();
        Ok((seed.deserialize(variant)?, self.cursor))
    }
}

impl<'n> VariantAccess<'n> for Cursor<'n, '_> {
    type Error = Failure;

    fn unit_variant(self) -> Result<(), Failure> {
        Err(Failure::invalid_type(self.unexpected(), &"a word").or_at(self.node))
    }

    fn newtype_variant_seed<T: DeserializeSeed<'n>>(self, seed: T) -> Result<T::Value, Failure> {
        seed.deserialize(self).map_err(|failure| failure.or_at(self.node))
    }

    fn tuple_variant<V: Visitor<'n>>(self, len: usize, visitor: V) -> Result<V::Value, Failure> {
        self.deserialize_tuple(len, visitor)
    }

    fn struct_variant<V: Visitor<'n>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Failure> {
        self.deserialize_struct("", fields, visitor)
    }
}

/// The structs of a tuple, each of which reads the same map.
struct Parts<'n, 'r> {
    cursor: Cursor<'n, 'r>,
    remaining: usize,
}

impl<'n> SeqAccess<'n> for Parts<'n, '_> {
    type Error = Failure;

    fn next_element_seed<T: DeserializeSeed<'n>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Failure> {
        let Some(remaining) = self.remaining.checked_sub(1) else { return Ok(None) };
        self.remaining = remaining;
        seed.deserialize(self.cursor).map(Some)
    }
}

/// The two parts of [`super::Spanned`].
struct LineAndValue<'n, 'r> {
    cursor: Cursor<'n, 'r>,
    position: u8,
}

impl<'n> SeqAccess<'n> for LineAndValue<'n, '_> {
    type Error = Failure;

    fn next_element_seed<T: DeserializeSeed<'n>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Failure> {
        self.position += 1;
        match self.position {
            1 => {
                let line: U64Deserializer<Failure> = self.cursor.node.line.into_deserializer();
                seed.deserialize(line).map(Some)
            }
            2 => seed.deserialize(self.cursor).map(Some),
            _ => Ok(None),
        }
    }
}
