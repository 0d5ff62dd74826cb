//! Checkpoint files of the device manager and the DRA manager: read at start, replaced atomically.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use windlass_kubelet_api::{
    checkpoint::{Checkpoint, CheckpointError, FILE_NAME},
    dra::checkpoint as dra,
};

/// The device manager's checkpoint file.
#[derive(Clone, Debug)]
pub(crate) struct CheckpointFile(StateFile);

/// The DRA manager's checkpoint file.
#[derive(Clone, Debug)]
pub(crate) struct ClaimsFile(StateFile);

/// A file that is replaced by renaming a temporary file.
#[derive(Clone, Debug)]
struct StateFile {
    path: PathBuf,
    temporary: PathBuf,
}

/// Failures of the DRA manager's checkpoint file. The kubelet does not start then.
#[derive(Debug, thiserror::Error)]
pub enum ClaimsFileError {
    /// The file cannot be read or written.
    #[error("cannot {action} {path}")]
    Io {
        /// Attempted action.
        action: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file's content is no valid checkpoint.
    #[error("no valid checkpoint in {path}: drain the node and remove the file")]
    Content {
        /// Path of the file.
        path: PathBuf,
        /// Defect of the content.
        source: dra::CheckpointError,
    },
}

/// Failures to read the device manager's checkpoint file. Its state starts empty then.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}")]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file's content is no valid checkpoint.
    #[error(transparent)]
    Content(#[from] CheckpointError),
}

// === impl CheckpointFile ===

impl CheckpointFile {
    pub(crate) fn in_dir(dir: &Path) -> Self {
        Self(StateFile::new(dir, FILE_NAME))
    }

    /// Reads the checkpoint, if the file exists.
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
        Self(StateFile::new(dir, dra::FILE_NAME))
    }

    /// Reads the checkpoint. If the file is missing, writes an empty checkpoint.
    pub(crate) fn read_or_create(&self) -> Result<dra::Checkpoint, ClaimsFileError> {
        let path = self.0.path.clone();
        let io_error = |action, source| ClaimsFileError::Io { action, path: path.clone(), source };
        if let Some(json) = self.0.read().map_err(|source| io_error("read", source))? {
            let parsed = dra::Checkpoint::parse(json.trim_end());
            return parsed.map_err(|source| ClaimsFileError::Content { path, source });
        }
        let empty = dra::Checkpoint::default();
        self.write(&empty).map_err(|source| io_error("write", source))?;
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

    /// Reads the text, if the file exists.
    fn read(&self) -> io::Result<Option<String>> {
        match fs::read_to_string(&self.path) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes a temporary file, syncs it and renames it, as the kubelet's file store does. The call
    /// blocks on purpose: the file is small, and the manager task handles no other command before it is written.
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
