//! A document of configuration: YAML or JSON as a tree that knows its lines, read into structs with
//! every mistake, not only the first.

mod complete;
mod lined;
mod reader;
mod tree;
mod words;

pub use lined::{Lined, Many};
pub use reader::{UnknownKeys, read};
pub use tree::{Node, nothing, parse, says_nothing};

/// What a configuration file has at a line, and what is to be said of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Remark {
    /// The line, counted from 1.
    pub line: u64,
    /// What is wrong, and what to write instead.
    pub text: String,
}

/// What is said of a file besides its meaning.
#[derive(Debug, Default)]
pub struct Remarks {
    /// What cannot be.
    pub wrong: Vec<Remark>,
    /// What has no effect, or another one than its writer may expect.
    pub warnings: Vec<Remark>,
}

// === impl Remark ===

impl Remark {
    /// A remark on a line.
    pub fn new(line: u64, text: impl Into<String>) -> Self {
        Self { line, text: text.into() }
    }
}

// === impl Remarks ===

impl Remarks {
    /// Adds a warning.
    pub fn warn(&mut self, line: u64, text: impl Into<String>) {
        self.warnings.push(Remark::new(line, text));
    }

    /// Adds a mistake.
    pub fn wrong(&mut self, line: u64, text: impl Into<String>) {
        self.wrong.push(Remark::new(line, text));
    }

    /// What was read with its warnings, unless something is wrong.
    pub fn judge<T>(mut self, read: T) -> Result<(T, Vec<Remark>), Vec<Remark>> {
        self.warnings.sort();
        if self.wrong.is_empty() { Ok((read, self.warnings)) } else { Err(self.wrong) }
    }
}
