//! A recording as a folder.

use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use super::{Entry, Recording};

/// Why a recording is not in its folder.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The folder has something in it.
    #[error("{0} is not empty: name a folder that is, or that does not exist yet")]
    NotEmpty(PathBuf),
    /// Something cannot be written.
    #[error("cannot write {path}")]
    Write {
        /// What.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

// === impl Recording ===

impl Recording {
    /// Makes the folder, or takes an empty one.
    pub fn folder(dir: &Path) -> Result<(), RecordError> {
        let refused = |source| RecordError::Write { path: dir.to_owned(), source };
        fs::create_dir_all(dir).map_err(refused)?;
        match fs::read_dir(dir).map_err(refused)?.next() {
            Some(_) => Err(RecordError::NotEmpty(dir.to_owned())),
            None => Ok(()),
        }
    }

    /// Writes everything to a folder, with a mark that says what it is a recording of.
    pub fn write(&self, dir: &Path, mark: &str) -> Result<(), RecordError> {
        let mark = (PathBuf::from("run/windlass/recorded"), Entry::Text(format!("{mark}\n")));
        // The mark first: a folder with anything of ours in it says what it is.
        for (path, entry) in std::iter::once((&mark.0, &mark.1)).chain(&self.entries) {
            let path = dir.join(path);
            entry.make(&path).map_err(|source| RecordError::Write { path, source })?;
        }
        Ok(())
    }
}

// === impl Entry ===

impl Entry {
    fn make(&self, path: &Path) -> io::Result<()> {
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
