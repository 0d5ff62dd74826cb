//! The file of remembered choices: read by people's commands, written by the agent.

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

use serde::Deserialize;
use windlass_host::{
    causes,
    files::{self, Links, MOST_BYTES, Readers},
};

use super::{Remembered, memory::Lines};

/// Where choices are kept.
#[derive(Clone, Debug)]
pub(super) struct ChoicesFile {
    path: PathBuf,
}

/// Why there is a file and no choices.
#[derive(Debug, thiserror::Error)]
pub enum ChoicesError {
    /// It cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// It is something else.
    #[error("{path} is no record of choices of version {VERSION}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// Another agent wrote it.
    #[error("{path} has version {found}, this program knows {VERSION}")]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
}

/// What a file of any version begins with.
#[derive(Debug, Deserialize)]
struct Version {
    version: u32,
}

/// The file.
#[derive(Debug, Deserialize)]
struct Document {
    /// The newest first.
    choices: Vec<Remembered>,
}

const VERSION: u32 = 1;

const NAME: &str = "choices.json";

// === impl ChoicesFile ===

impl ChoicesFile {
    pub(super) fn new(state_dir: &Path) -> Self {
        Self { path: state_dir.join(NAME) }
    }

    /// The choices, the newest first. Blocks.
    pub(super) fn read(&self) -> Result<Vec<Remembered>, ChoicesError> {
        let path = || self.path.clone();
        let text = match files::read_regular(&self.path, Links::Refused, MOST_BYTES) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(ChoicesError::Read { path: path(), source }),
        };
        parse(&self.path, &text)
    }

    /// The choices of earlier lives. What cannot be understood is moved out of the way, for a person to
    /// look at. Blocks.
    pub(super) fn take_over(&self) -> Vec<Remembered> {
        let why = match self.read() {
            Ok(choices) => return choices,
            Err(why) => causes(&why),
        };
        match files::set_aside(&self.path) {
            Ok(aside) => {
                tracing::warn!(error = why, aside = %aside.display(), "choices are set aside");
            }
            Err(refused) => tracing::warn!(error = why, %refused, "choices cannot be read"),
        }
        Vec::new()
    }

    /// Writes the choices, each in a line of its own. Blocks.
    pub(super) fn write(&self, lines: &Lines) -> io::Result<()> {
        files::replace(&self.path, text(lines).as_bytes(), Readers::Everyone).map(drop)
    }
}

fn text(lines: &Lines) -> String {
    let lines: Vec<_> = lines.iter().collect();
    format!("{{\"version\":{VERSION},\"choices\":[\n{}\n]}}\n", lines.join(",\n"))
}

/// What would be written of a document that was read; `path` is for the messages.
pub fn reread(path: &Path, read: &[u8]) -> Result<Vec<u8>, ChoicesError> {
    Ok(text(&Lines::of(&parse(path, read)?)).into_bytes())
}

fn parse(path: &Path, text: &[u8]) -> Result<Vec<Remembered>, ChoicesError> {
    let unreadable = |source| ChoicesError::Parse { path: path.to_owned(), source };
    // Choices of another version may look different.
    match serde_json::from_slice(text).map_err(unreadable)? {
        Version { version: VERSION } => {}
        Version { version: found } => {
            return Err(ChoicesError::Version { path: path.to_owned(), found });
        }
    }
    let document: Document = serde_json::from_slice(text).map_err(unreadable)?;
    Ok(document.choices)
}

impl fmt::Display for ChoicesFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.display().fmt(f)
    }
}
