//! State file `choices.json`, which the agent writes and commands read.

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

use serde::Deserialize;
use windlass_host::{
    causes,
    files::{self, FileAccess, MAX_BYTES, Symlinks},
};

use super::{RecordedChoice, writer::Lines};

#[derive(Clone, Debug)]
pub(super) struct HistoryFile {
    path: PathBuf,
}

/// Failure to read an existing history file.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// I/O error.
    #[error("cannot read {0}")]
    Read(PathBuf, #[source] io::Error),
    /// Invalid JSON or an unknown structure.
    #[error("{0} is not an allocation history of version {VERSION}")]
    Parse(PathBuf, #[source] serde_json::Error),
    /// Format version that this program does not know.
    #[error("{0} has version {1}, this program knows {VERSION}")]
    Version(PathBuf, u32),
}

/// Header that every version shares.
#[derive(Debug, Deserialize)]
struct Version {
    version: u32,
}

/// Contents of the current version.
#[derive(Debug, Deserialize)]
struct HistoryDocument {
    /// Newest first.
    choices: Vec<RecordedChoice>,
}

const VERSION: u32 = 1;

const NAME: &str = "choices.json";

// === impl HistoryFile ===

impl HistoryFile {
    pub(super) fn new(state_dir: &Path) -> Self {
        Self { path: state_dir.join(NAME) }
    }

    /// Reads the choices, newest first. Blocks.
    pub(super) fn read(&self) -> Result<Vec<RecordedChoice>, HistoryError> {
        let path = || self.path.clone();
        let text = match files::read_regular(&self.path, Symlinks::Refused, MAX_BYTES) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(HistoryError::Read(path(), source)),
        };
        parse(&self.path, &text)
    }

    /// Reads the choices of earlier agents. An unreadable file is renamed, so that a person can inspect it. Blocks.
    pub(super) fn read_or_set_aside(&self) -> Vec<RecordedChoice> {
        let error = match self.read() {
            Ok(choices) => return choices,
            Err(error) => causes(&error),
        };
        match files::set_aside(&self.path) {
            Ok(aside) => {
                tracing::warn!(error, aside = %aside.display(), "allocation history set aside");
            }
            Err(rename_error) => {
                tracing::warn!(error, refused = %rename_error, "allocation history cannot be read");
            }
        }
        Vec::new()
    }

    /// Writes one choice per line. Blocks.
    pub(super) fn write(&self, lines: &Lines) -> io::Result<()> {
        files::replace(&self.path, text(lines).as_bytes(), FileAccess::Everyone).map(drop)
    }
}

fn text(lines: &Lines) -> String {
    let lines: Vec<_> = lines.iter().collect();
    format!("{{\"version\":{VERSION},\"choices\":[\n{}\n]}}\n", lines.join(",\n"))
}

/// Serializes a parsed document again; `path` appears in errors only.
pub fn reserialize(path: &Path, contents: &[u8]) -> Result<Vec<u8>, HistoryError> {
    Ok(text(&Lines::from_choices(&parse(path, contents)?)).into_bytes())
}

fn parse(path: &Path, text: &[u8]) -> Result<Vec<RecordedChoice>, HistoryError> {
    let parse_error = |source| HistoryError::Parse(path.to_owned(), source);
    // The structure of a choice may change between versions, so the version is checked first.
    match serde_json::from_slice(text).map_err(parse_error)? {
        Version { version: VERSION } => {}
        Version { version } => {
            return Err(HistoryError::Version(path.to_owned(), version));
        }
    }
    let document: HistoryDocument = serde_json::from_slice(text).map_err(parse_error)?;
    Ok(document.choices)
}

impl fmt::Display for HistoryFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.display().fmt(f)
    }
}
