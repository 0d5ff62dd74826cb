//! The mistakes of a configuration file, with their lines.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use crate::document::Diagnostic;

/// A file that cannot be read, or the mistakes in it.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read configuration {0}")]
    Read(PathBuf, #[source] std::io::Error),
    /// The node's label names a file that does not exist.
    #[error("{dir} has no file {name:?}, which the node's label asks for", dir = dir.display())]
    NoSuchFile {
        /// The folder of configurations.
        dir: PathBuf,
        /// The label's value.
        name: String,
    },
    /// The file has mistakes.
    #[error(transparent)]
    Invalid(#[from] InvalidConfig),
}

/// The mistakes of a file; at least one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct InvalidConfig {
    /// The file.
    pub path: PathBuf,
    /// Mistakes in the order of the lines.
    pub diagnostics: Vec<Diagnostic>,
}

// === impl InvalidConfig ===

impl InvalidConfig {
    /// The mistakes of a file, in the order of its lines.
    pub fn new(path: &Path, mut diagnostics: Vec<Diagnostic>) -> Self {
        diagnostics.sort();
        diagnostics.dedup();
        Self { path: path.to_owned(), diagnostics }
    }
}

impl fmt::Display for InvalidConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Diagnostic { line, text }) in self.diagnostics.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}{}:{line}: {text}", self.path.display())?;
        }
        Ok(())
    }
}
