//! Reserved disk space for one file, so that its next version can be written on a full disk.
//!
//! Spare files of fixed size lie beside the file. If no new file can be written, a spare is overwritten and exchanged
//! with the file. The content is padded with blanks to the size of the spare, so that no blocks are freed, which other
//! programs would take. If the file is absent or shorter than a spare, the exchange uses up the spare; the second spare
//! then serves the next version.

use std::{
    fs::{self, File, Permissions},
    io::{self, Write as _},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use rustix::fs::{CWD, OFlags, RenameFlags, renameat_with};

use super::{FileAccess, replace};

/// Size of a spare in bytes, enough for the health records of several hundred devices.
const SPARE_BYTES: usize = 64 << 10;

/// Creates the missing spares of a file. Blocks.
pub(crate) fn create_spares(path: &Path) -> io::Result<()> {
    let required: usize = if is_full_size(path) { 1 } else { 2 };
    // An existing spare is not replaced: its content does not matter, and a full disk may have no room for a new one.
    let (present, missing): (Vec<_>, Vec<_>) =
        spare_paths(path)?.into_iter().partition(|spare| is_full_size(spare));
    for spare in missing.iter().take(required.saturating_sub(present.len())) {
        replace(spare, &vec![b' '; SPARE_BYTES], FileAccess::Owner)?;
    }
    Ok(())
}

/// Replaces a file by a spare with this content. Blocks.
pub(crate) fn write_into_spare(path: &Path, content: &[u8], access: FileAccess) -> io::Result<()> {
    let spare = spare_paths(path)?.into_iter().find(|spare| is_full_size(spare));
    let spare = spare.ok_or(io::ErrorKind::NotFound)?;
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let mut file = File::options().write(true).custom_flags(flags).open(&spare)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let length = usize::try_from(metadata.len()).unwrap_or(SPARE_BYTES);
    file.set_permissions(Permissions::from_mode(access.mode()))?;
    file.write_all(content)?;
    file.write_all(&vec![b' '; length.saturating_sub(content.len())])?;
    file.sync_all()?;
    if renameat_with(CWD, &spare, CWD, path, RenameFlags::EXCHANGE).is_err() {
        // The file does not exist yet, or the file system lacks exchange.
        fs::rename(&spare, path)?;
    }
    path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

fn spare_paths(path: &Path) -> io::Result<[PathBuf; 2]> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy();
    Ok(["spare", "spare2"].map(|suffix| path.with_file_name(format!(".{name}.{suffix}"))))
}

/// True for a regular file of at least the size of a spare.
fn is_full_size(path: &Path) -> bool {
    fs::symlink_metadata(path)
        .is_ok_and(|metadata| metadata.is_file() && metadata.len() >= SPARE_BYTES as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_version_fits_into_the_spare_without_new_blocks() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("a.json");
        let blocks = || {
            let files = fs::read_dir(folder.path()).expect("a folder").flatten();
            files.map(|file| file.metadata().expect("the file exists").len()).sum::<u64>()
        };
        replace(&path, b"old", FileAccess::Owner).expect("written");
        create_spares(&path).expect("created");
        let size = blocks();
        for content in ["one", "two"] {
            write_into_spare(&path, content.as_bytes(), FileAccess::Owner).expect("a spare exists");
            assert_eq!(fs::read_to_string(&path).expect("the file exists").trim_end(), content);
            assert_eq!(blocks(), size, "the folder needs no more space");
        }
        create_spares(&path).expect("created");
        fs::remove_file(&path).expect("the file exists");
        write_into_spare(&path, b"three", FileAccess::Owner).expect("a spare exists");
        assert_eq!(fs::read_to_string(&path).expect("the file exists").trim_end(), "three");
        let error = write_into_spare(&path, b"four", FileAccess::Owner)
            .expect_err("the spares are used up");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn an_absent_file_uses_one_spare_and_later_versions_the_other() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("a.json");
        create_spares(&path).expect("created");
        for content in ["one", "two", "three"] {
            write_into_spare(&path, content.as_bytes(), FileAccess::Owner).expect("a spare exists");
            assert_eq!(fs::read_to_string(&path).expect("the file exists").trim_end(), content);
        }
        // A folder in place of its draft makes every write of a new file fail.
        let draft = |spare: &str| folder.path().join(format!("..a.json.{spare}.draft"));
        for spare in ["spare", "spare2"] {
            fs::create_dir(draft(spare)).expect("made");
        }
        create_spares(&path).expect("the spare exists already");
        write_into_spare(&path, b"four", FileAccess::Owner).expect("a spare exists");
    }
}
