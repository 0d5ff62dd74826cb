//! YAML as a tree of nodes that know their lines and their source text.

use std::{borrow::Cow, collections::BTreeSet, fmt};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error as _, MapAccess, SeqAccess, Visitor},
};
use serde_saphyr::{DuplicateKeyPolicy, Options, Spanned};

use super::Diagnostic;

/// A value with its position in the file.
#[derive(Clone, Debug)]
pub struct YamlNode {
    /// Id that is unique in the document.
    pub(super) id: u32,
    /// The line on which it begins, from 1.
    pub line: u64,
    /// Source text of a scalar: a number or boolean may be meant as text.
    pub(super) source: String,
    pub(super) value: Value,
}

/// The value by YAML's types.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Text(String),
    List(Vec<YamlNode>),
    Map(Vec<(Key, YamlNode)>),
}

#[derive(Clone, Debug)]
pub(super) struct Key {
    pub(super) line: u64,
    pub(super) text: String,
}

/// Deepest nesting of lists and maps, since each level uses stack. The deepest real document, a file in a manifest in a
/// list of manifests, has a dozen levels.
const MAX_DEPTH: usize = 32;

/// Maximum number of lists, maps and scalars of a document, with aliases expanded. A real configuration has some dozen
/// rules.
const MAX_VALUES: usize = 250_000;

/// Parses a document; an empty one is an error.
pub fn parse(text: &str) -> Result<YamlNode, Diagnostic> {
    if is_empty_document(text) {
        return Err(empty_document_error(text));
    }
    let text = &*without_tabs(text);
    let tree = serde_saphyr::from_str_with_options::<Spanned<Tree>>(text, options());
    let mut root = YamlNode::new(tree.map_err(|error| diagnostic(&error))?, text);
    if matches!(root.value, Value::Null) {
        return Err(empty_document_error(text));
    }
    root.assign_ids(&mut 0);
    Ok(root)
}

/// Tree of the document to which a value serialises.
pub(crate) fn to_tree<T: Serialize>(value: &T) -> YamlNode {
    let text = serde_saphyr::to_string(value).expect("every value has a form in YAML");
    let mut options = options();
    options.budget = None;
    let tree = serde_saphyr::from_str_with_options::<Spanned<Tree>>(&text, options);
    YamlNode::new(tree.expect("the serialiser writes valid YAML"), &text)
}

/// True for a text of empty lines and comments.
pub fn is_empty_document(text: &str) -> bool {
    text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#'))
}

/// Error message for an empty document. An empty document does not stand for the defaults: more likely the file is just
/// being written, or a template rendered to nothing.
pub fn empty_document_error(text: &str) -> Diagnostic {
    let empty_lines = text.lines().position(|line| !line.trim().is_empty());
    let line = empty_lines.map_or(text.lines().count(), |lines| lines + 1).max(1);
    let text = "the configuration says nothing: write `{}` for the defaults";
    Diagnostic::new(line as u64, text)
}

/// Replaces tabs in JSON: JSON permits them for indentation, and YAML does not. JSON strings contain tabs only as `\t`.
fn without_tabs(text: &str) -> Cow<'_, str> {
    if text.trim_start().starts_with(['{', '[']) {
        Cow::Owned(text.replace('\t', " "))
    } else {
        Cow::Borrowed(text)
    }
}

/// Options of the parser. Repeated keys reach the reader, which reports the line of the first occurrence.
fn options() -> Options {
    let mut options = Options::default();
    options.budget = serde_saphyr::budget! { max_depth: MAX_DEPTH, max_nodes: MAX_VALUES };
    options.duplicate_keys = DuplicateKeyPolicy::PassThrough;
    options
}

/// Diagnostic of a YAML error: its first line, without the excerpt of the document.
fn diagnostic(error: &serde_saphyr::Error) -> Diagnostic {
    let line = error.location().map_or(1, |location| location.line());
    let text = error.without_snippet().to_string();
    let first = text.lines().next().unwrap_or_default();
    let problem = first.rsplit_once(" at line ").map_or(first, |(problem, _)| problem);
    Diagnostic::new(line, exceeded_limit(problem).unwrap_or_else(|| problem.to_owned()))
}

/// Message for the limit that a document exceeds; `None` for other problems. The library reports an excess of aliases
/// only by the text of its messages.
fn exceeded_limit(problem: &str) -> Option<String> {
    let alias_problems = ["alias replay", "alias expansion", "budget breached: AliasAnchorRatio"];
    if alias_problems.iter().any(|prefix| problem.starts_with(prefix)) {
        return Some(
            "too large: its aliases (*name) repeat more than any configuration does".to_owned(),
        );
    }
    let budget = problem.strip_prefix("budget breached: ")?;
    Some(if budget.starts_with("Depth") {
        format!("too deep: more than {MAX_DEPTH} lists and groups of keys in each other")
    } else {
        format!("too large: more than {},000 values", MAX_VALUES / 1000)
    })
}

// === impl YamlNode ===

impl YamlNode {
    fn new(Spanned { value, referenced, defined, .. }: Spanned<Tree>, text: &str) -> Self {
        let span = defined.span();
        let source = span.byte_offset().zip(span.byte_len()).and_then(|(start, length)| {
            let start = usize::try_from(start).ok()?;
            text.get(start..start.checked_add(usize::try_from(length).ok()?)?)
        });
        let is_scalar = !matches!(value, Tree::List(_) | Tree::Map(_));
        let source = source.filter(|_| is_scalar).unwrap_or_default().trim().to_owned();
        Self { id: 0, line: referenced.line(), source, value: Value::new(value, text) }
    }

    /// Gives every node an id that is unique in the document.
    pub(super) fn assign_ids(&mut self, next: &mut u32) {
        self.id = *next;
        *next += 1;
        match &mut self.value {
            Value::List(items) => items.iter_mut().for_each(|item| item.assign_ids(next)),
            Value::Map(entries) => entries.iter_mut().for_each(|(_, value)| value.assign_ids(next)),
            _ => {}
        }
    }

    /// The keys of a map.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        let entries = if let Value::Map(entries) = &self.value { entries.as_slice() } else { &[] };
        entries.iter().map(|(key, _)| key.text.as_str())
    }

    /// The value of a key.
    pub fn child(&self, name: &str) -> Option<&Self> {
        let Value::Map(entries) = &self.value else { return None };
        entries.iter().find(|(key, _)| key.text == name).map(|(_, node)| node)
    }

    /// The entries of a map.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &Self)> {
        let entries = if let Value::Map(entries) = &self.value { entries.as_slice() } else { &[] };
        entries.iter().map(|(key, node)| (key.text.as_str(), node))
    }

    /// The value of a key, ignoring the case of its letters.
    pub fn child_ignore_case(&self, name: &str) -> Option<&Self> {
        self.entries().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, node)| node)
    }

    /// The items of a list.
    pub fn items(&self) -> &[Self] {
        if let Value::List(items) = &self.value { items } else { &[] }
    }

    /// True for a block scalar, after `|` or `>`.
    pub fn is_block(&self) -> bool {
        matches!(self.value, Value::Text(_)) && self.source.starts_with(['|', '>'])
    }

    /// True for a key without a value.
    pub(crate) fn is_null(&self) -> bool {
        matches!(self.value, Value::Null)
    }

    /// The line of a key's value, or of the map if the key is absent.
    pub(crate) fn line_of(&self, name: &str) -> u64 {
        self.child(name).map_or(self.line, |node| node.line)
    }

    /// The items of a key's list.
    pub(crate) fn list(&self, name: &str) -> &[Self] {
        self.child(name).map_or(&[], Self::items)
    }

    /// Removes items of lists, by their ids.
    pub(crate) fn remove_items(&mut self, ids: &BTreeSet<u32>) {
        match &mut self.value {
            Value::List(items) => {
                items.retain(|item| !ids.contains(&item.id));
                for item in items {
                    item.remove_items(ids);
                }
            }
            Value::Map(entries) => {
                for (_, node) in entries {
                    node.remove_items(ids);
                }
            }
            _ => {}
        }
    }

    /// Removes every key whose value is the same in `other`.
    pub(crate) fn remove_equal(&mut self, other: &Self) {
        let Value::Map(entries) = &mut self.value else { return };
        entries.retain_mut(|(key, node)| {
            match other.child(&key.text) {
                Some(other_node) if other_node == node => return false,
                Some(other_node) => node.remove_equal(other_node),
                None => {}
            }
            true
        });
    }

    /// A scalar as text.
    pub fn text(&self) -> Option<String> {
        match &self.value {
            Value::Text(text) => Some(text.clone()),
            Value::Null | Value::List(_) | Value::Map(_) => None,
            Value::Bool(_) | Value::Unsigned(_) | Value::Signed(_) | Value::Float(_) => {
                Some(self.source.clone())
            }
        }
    }
}

/// Nodes with equal values are equal, on any line.
impl PartialEq for YamlNode {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Serialize for YamlNode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.value {
            Value::Null => serializer.serialize_unit(),
            Value::Bool(value) => serializer.serialize_bool(*value),
            Value::Unsigned(value) => serializer.serialize_u64(*value),
            Value::Signed(value) => serializer.serialize_i64(*value),
            Value::Float(value) => serializer.serialize_f64(*value),
            Value::Text(value) => serializer.serialize_str(value),
            Value::List(items) => serializer.collect_seq(items),
            Value::Map(entries) => {
                serializer.collect_map(entries.iter().map(|(key, node)| (&key.text, node)))
            }
        }
    }
}

impl Value {
    fn new(tree: Tree, text: &str) -> Self {
        match tree {
            Tree::Scalar(scalar) => scalar,
            Tree::List(items) => {
                Self::List(items.into_iter().map(|item| YamlNode::new(item, text)).collect())
            }
            Tree::Map(entries) => {
                let entry = |(key, value): (Spanned<String>, _)| {
                    let key = Key { line: key.referenced.line(), text: key.value };
                    (key, YamlNode::new(value, text))
                };
                Self::Map(entries.into_iter().map(entry).collect())
            }
        }
    }
}

/// The tree as the YAML library parses it.
enum Tree {
    Scalar(Value),
    List(Vec<Spanned<Tree>>),
    Map(Vec<(Spanned<String>, Spanned<Tree>)>),
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TreeVisitor)
    }
}

struct TreeVisitor;

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Tree, E> {
        Ok(Tree::Scalar(Value::Bool(value)))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Tree, E> {
        Ok(Tree::Scalar(Value::Unsigned(value)))
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Tree, E> {
        u64::try_from(value)
            .map_or(Ok(Tree::Scalar(Value::Signed(value))), |unsigned| self.visit_u64(unsigned))
    }

    #[expect(clippy::cast_precision_loss, reason = "no key takes a number of that size")]
    fn visit_i128<E>(self, value: i128) -> Result<Tree, E> {
        Ok(Tree::Scalar(Value::Float(value as f64)))
    }

    #[expect(clippy::cast_precision_loss, reason = "no key takes a number of that size")]
    fn visit_u128<E>(self, value: u128) -> Result<Tree, E> {
        Ok(Tree::Scalar(Value::Float(value as f64)))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Tree, E> {
        Ok(Tree::Scalar(Value::Float(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Tree, E> {
        Ok(Tree::Scalar(Value::Text(value.to_owned())))
    }

    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree::Scalar(Value::Null))
    }

    fn visit_none<E: serde::de::Error>(self) -> Result<Tree, E> {
        self.visit_unit()
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Tree, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Tree::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Tree, A::Error> {
        let mut map = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            map.push(entry);
        }
        if map.len() > MAX_KEYS {
            return Err(A::Error::custom("more keys than any configuration has"));
        }
        Ok(Tree::Map(map))
    }
}

/// Maximum number of keys of a map; no configuration has more.
const MAX_KEYS: usize = 10_000;
