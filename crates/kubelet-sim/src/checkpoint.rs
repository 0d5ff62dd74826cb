//! The checkpoint files: read at start, replaced as a whole.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use windlass_kubelet_api::{
    checkpoint::{Checkpoint, CheckpointError, FILE},
    dra::checkpoint as dra,
};

/// Where the device manager's checkpoint lies.
#[derive(Clone, Debug)]
pub(crate) struct CheckpointFile(StateFile);

/// Where the DRA manager's checkpoint lies.
#[derive(Clone, Debug)]
pub(crate) struct ClaimsFile(StateFile);

/// A file that is replaced as a whole.
#[derive(Clone, Debug)]
struct StateFile {
    path: PathBuf,
    temporary: PathBuf,
}

/// Why a kubelet does not start: its claims are not known.
#[derive(Debug, thiserror::Error)]
pub enum ClaimsFileError {
    /// The file cannot be read or written.
    #[error("cannot {action} {path}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The file is not what a kubelet wrote.
    #[error("cannot take {path}: drain the node and remove it")]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: dra::CheckpointError,
    },
}

/// Why the state starts empty.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The file is not what the kubelet wrote.
    #[error(transparent)]
    Content(#[from] CheckpointError),
}

// === impl CheckpointFile ===

impl CheckpointFile {
    pub(crate) fn in_dir(dir: &Path) -> Self {
        Self(StateFile::new(dir, FILE))
    }

    /// The document, if there is one.
    pub(crate) fn read(&self) -> Result<Option<Checkpoint>, ReadError> {
        let json = self.0.read();
        let json = json.map_err(|source| ReadError::Io { path: self.0.path.clone(), source })?;
        Ok(json.map(|json| Checkpoint::parse(json.trim_end())).transpose()?)
    }

    pub(crate) fn write(&self, checkpoint: &Checkpoint) -> io::Result<()> {
        self.0.write(&checkpoint.to_json())
    }
}

// === impl ClaimsFile ===

impl ClaimsFile {
    pub(crate) fn in_dir(dir: &Path) -> Self {
        Self(StateFile::new(dir, dra::FILE))
    }

    /// The document; an empty one is written if there is none.
    pub(crate) fn read_or_create(&self) -> Result<dra::Checkpoint, ClaimsFileError> {
        let path = self.0.path.clone();
        let failed = |action, source| ClaimsFileError::Io { action, path: path.clone(), source };
        if let Some(json) = self.0.read().map_err(|source| failed("read", source))? {
            let parsed = dra::Checkpoint::parse(json.trim_end());
            return parsed.map_err(|source| ClaimsFileError::Content { path, source });
        }
        let empty = dra::Checkpoint::default();
        self.write(&empty).map_err(|source| failed("write", source))?;
        Ok(empty)
    }

    pub(crate) fn write(&self, checkpoint: &dra::Checkpoint) -> io::Result<()> {
        self.0.write(&checkpoint.to_json())
    }
}

// === impl StateFile ===

impl StateFile {
    fn new(dir: &Path, name: &str) -> Self {
        Self { path: dir.join(name), temporary: dir.join(format!(".{name}")) }
    }

    /// The text, if there is one.
    fn read(&self) -> io::Result<Option<String>> {
        match fs::read_to_string(&self.path) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes beside, syncs, renames, as the kubelet's file store does. The document is small and
    /// nothing else may happen meanwhile, so this blocks on purpose.
    fn write(&self, text: &str) -> io::Result<()> {
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .open(&self.temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&self.temporary, &self.path)
    }
}
