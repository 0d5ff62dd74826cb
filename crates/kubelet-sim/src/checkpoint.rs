//! The checkpoint file: read at start, replaced as a whole.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use windlass_kubelet_api::checkpoint::{Checkpoint, CheckpointError, FILE};

/// Where the checkpoint lies.
#[derive(Clone, Debug)]
pub(crate) struct CheckpointFile {
    path: PathBuf,
    temporary: PathBuf,
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
        Self { path: dir.join(FILE), temporary: dir.join(format!(".{FILE}")) }
    }

    /// The document, if there is one.
    pub(crate) fn read(&self) -> Result<Option<Checkpoint>, ReadError> {
        match fs::read_to_string(&self.path) {
            Ok(json) => Ok(Some(Checkpoint::parse(json.trim_end())?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(ReadError::Io { path: self.path.clone(), source }),
        }
    }

    /// Writes beside, syncs, renames, as the kubelet's file store does. The document is small and
    /// nothing else may happen meanwhile, so this blocks on purpose.
    pub(crate) fn write(&self, checkpoint: &Checkpoint) -> io::Result<()> {
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .open(&self.temporary)?;
        file.write_all(checkpoint.to_json().as_bytes())?;
        file.sync_all()?;
        fs::rename(&self.temporary, &self.path)
    }
}
