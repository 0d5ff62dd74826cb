//! Feature file for node-feature-discovery.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use windlass_core::labels::{Labels, feature_file};
use windlass_host::files::{self, MAX_BYTES, Symlinks};

/// Path and content of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FeatureFile {
    path: PathBuf,
    content: String,
}

/// Failed write or removal.
#[derive(Debug, thiserror::Error)]
#[error("cannot {operation} label file {path}")]
pub(super) struct FileError {
    operation: &'static str,
    path: PathBuf,
    source: io::Error,
}

/// Writes the new file, and removes the old one if its path differs.
pub(super) fn replace(
    previous: Option<&FeatureFile>,
    new_file: Option<&FeatureFile>,
) -> Result<(), FileError> {
    if let Some(file) = new_file {
        file.write()?;
    }
    match previous.filter(|previous| new_file.is_none_or(|file| file.path != previous.path)) {
        Some(previous) => previous.remove(),
        None => Ok(()),
    }
}

// === impl FeatureFile ===

impl FeatureFile {
    pub(super) fn new(path: &Path, labels: &Labels) -> Self {
        Self { path: path.to_owned(), content: feature_file(labels) }
    }

    /// Writes changed content and creates the folder. The temporary file has a leading dot, so that
    /// node-feature-discovery ignores it.
    fn write(&self) -> Result<(), FileError> {
        let written =
            files::replace(&self.path, self.content.as_bytes(), files::FileAccess::Everyone);
        if written.map_err(|source| self.error("write", source))? {
            tracing::info!(path = %self.path.display(), "labels written");
        }
        Ok(())
    }

    /// Removes the file, unless another program has changed its content.
    fn remove(&self) -> Result<(), FileError> {
        let removed = match files::read_regular(&self.path, Symlinks::Refused, MAX_BYTES) {
            Ok(present) if present != self.content.as_bytes() => return Ok(()),
            Ok(_) => fs::remove_file(&self.path),
            Err(error) => Err(error),
        };
        match removed {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(source) => Err(self.error("remove", source)),
            Ok(()) => {
                tracing::info!(path = %self.path.display(), "labels removed");
                Ok(())
            }
        }
    }

    fn error(&self, operation: &'static str, source: io::Error) -> FileError {
        FileError { operation, path: self.path.clone(), source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(value: &str) -> Labels {
        Labels::from([("nvidia.com/gpu.count".to_owned(), value.to_owned())])
    }

    #[test]
    fn a_file_that_moves_leaves_nothing_behind() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let file_in = |name: &str| FeatureFile::new(&dir.path().join(name), &labels("8"));
        let (old, new) = (file_in("a/gfd"), file_in("b/gfd"));
        replace(None, Some(&old)).expect("written");
        replace(Some(&old), Some(&new)).expect("written");
        assert!(!old.path.exists());
        assert_eq!(fs::read_to_string(&new.path).expect("the file"), "nvidia.com/gpu.count=8\n");
        replace(Some(&new), None).expect("removed");
        replace(Some(&new), None).expect("a missing file is no error");
        assert!(!new.path.exists());
    }

    #[test]
    fn a_file_of_another_program_is_not_removed() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let file = FeatureFile::new(&dir.path().join("gfd"), &labels("8"));
        replace(None, Some(&file)).expect("written");
        fs::write(&file.path, "theirs=1\n").expect("written");
        replace(Some(&file), None).expect("a changed file is no error");
        assert!(file.path.exists());
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join("gfd");
        fs::create_dir(&path).expect("a folder");
        let error = replace(None, Some(&FeatureFile::new(&path, &labels("8"))));
        let text = error.expect_err("a folder is not a file").to_string();
        assert_eq!(text, format!("cannot write label file {}", path.display()));
    }
}
