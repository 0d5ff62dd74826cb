//! Writer of a snapshot to a folder.

use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use super::{Entry, Snapshot};

/// Error of writing a snapshot.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The folder is not empty.
    #[error("{0} is not empty: name an empty or new folder")]
    NotEmpty(PathBuf),
    /// A file cannot be written.
    #[error("cannot write {0}")]
    Write(PathBuf, #[source] io::Error),
}

// === impl Snapshot ===

impl Snapshot {
    /// Creates the folder, or accepts an empty one.
    pub fn create_folder(dir: &Path) -> Result<(), SnapshotError> {
        let write_error = |source| SnapshotError::Write(dir.to_owned(), source);
        fs::create_dir_all(dir).map_err(write_error)?;
        match fs::read_dir(dir).map_err(write_error)?.next() {
            Some(_) => Err(SnapshotError::NotEmpty(dir.to_owned())),
            None => Ok(()),
        }
    }

    /// Writes the snapshot into a folder, with a marker file whose text is `origin`.
    pub fn write(&self, dir: &Path, origin: &str) -> Result<(), SnapshotError> {
        let marker = (PathBuf::from("run/windlass/recorded"), Entry::Text(format!("{origin}\n")));
        // The marker comes first, so that an incomplete snapshot is recognised as one.
        for (path, entry) in std::iter::once((&marker.0, &marker.1)).chain(&self.entries) {
            let path = dir.join(path);
            entry.create(&path).map_err(|source| SnapshotError::Write(path, source))?;
        }
        Ok(())
    }
}

// === impl Entry ===

impl Entry {
    fn create(&self, path: &Path) -> io::Result<()> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        match self {
            Self::Folder => fs::create_dir_all(path),
            Self::Text(text) => fs::write(path, text),
            Self::Link(target) => symlink(target, path),
            Self::Node => fs::write(path, ""),
        }
    }
}
