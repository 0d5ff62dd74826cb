//! Configuration documents: YAML or JSON as a tree with line numbers, read into structs. The reader reports
//! every error, not only the first.

mod complete;
mod messages;
mod reader;
mod spanned;
mod tree;

pub(crate) use messages::unknown_word;
pub use reader::{Reading, UnknownKeys, read};
pub use spanned::{OneOrMany, Spanned};
pub(crate) use tree::to_tree;
pub use tree::{YamlNode, empty_document_error, is_empty_document, parse};

/// A message about a line of a configuration file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Diagnostic {
    /// The line, counted from 1.
    pub line: u64,
    /// The problem and its correction.
    pub text: String,
}

/// Errors and warnings about a file.
#[derive(Debug, Default)]
pub struct Diagnostics {
    /// Errors: the file is refused.
    pub errors: Vec<Diagnostic>,
    /// Lines without effect, or with an effect that their writer may not expect.
    pub warnings: Vec<Diagnostic>,
}

// === impl Diagnostic ===

impl Diagnostic {
    /// A diagnostic of a line.
    pub fn new(line: u64, text: impl Into<String>) -> Self {
        Self { line, text: text.into() }
    }
}

// === impl Diagnostics ===

impl Diagnostics {
    /// Adds a warning.
    pub fn warn(&mut self, line: u64, text: impl Into<String>) {
        self.warnings.push(Diagnostic::new(line, text));
    }

    /// Adds an error.
    pub fn error(&mut self, line: u64, text: impl Into<String>) {
        self.errors.push(Diagnostic::new(line, text));
    }

    /// The value with its warnings if there are no errors, else the errors.
    pub fn into_result<T>(mut self, value: T) -> Result<(T, Vec<Diagnostic>), Vec<Diagnostic>> {
        self.warnings.sort();
        if self.errors.is_empty() { Ok((value, self.warnings)) } else { Err(self.errors) }
    }
}
