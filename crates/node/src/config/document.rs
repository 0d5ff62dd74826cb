//! A document of configuration: YAML or JSON as a tree that knows its lines, read into structs with
//! every mistake, not only the first.

mod lined;
mod reader;
mod tree;

pub(super) use lined::{Lined, Many};
pub(super) use reader::{UnknownKeys, read};
pub(super) use tree::{Node, parse};

/// What a configuration file has at a line, and what is to be said of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Remark {
    /// The line, counted from 1.
    pub line: u64,
    /// What is wrong, and what to write instead.
    pub text: String,
}

// === impl Remark ===

impl Remark {
    pub(super) fn new(line: u64, text: impl Into<String>) -> Self {
        Self { line, text: text.into() }
    }
}
