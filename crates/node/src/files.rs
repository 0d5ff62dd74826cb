//! Files that are either the old document or the new one, whatever happens in between.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

/// Replaces a file, its folder made where there is none: written beside it under a dot name, flushed to
/// the disk, renamed over it, and the rename flushed too. Leaves a file that already says the same alone.
/// Gives whether it wrote.
pub(crate) fn replace(path: &Path, content: &[u8]) -> io::Result<bool> {
    if fs::read(path).is_ok_and(|present| present == content) {
        return Ok(false);
    }
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    fs::create_dir_all(folder)?;
    let draft = folder.join(format!(".{}.draft", name.to_string_lossy()));
    let mut file = File::create(&draft)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&draft, path)?;
    File::open(folder)?.sync_all()?;
    Ok(true)
}

/// Moves a JSON file that nobody understands out of the way, for a person to look at, and tells where to.
pub(crate) fn set_aside(path: &Path) -> io::Result<PathBuf> {
    let aside = path.with_extension("json.unreadable");
    fs::rename(path, &aside)?;
    Ok(aside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_equal_document_is_not_written_again() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join("a.json");
        assert!(replace(&path, b"1").expect("written"));
        assert!(!replace(&path, b"1").expect("read"));
        assert!(replace(&path, b"2").expect("written"));
        assert_eq!(fs::read(&path).expect("there"), b"2");
        assert_eq!(fs::read_dir(dir.path()).expect("a folder").count(), 1, "no draft is left");
    }
}
