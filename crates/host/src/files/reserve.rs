//! Reserved disk space for one file, so that a full disk still takes its next version.
//!
//! A spare file of fixed size lies beside it. If no new file can be written, the spare is overwritten and
//! exchanged with the file. Its length stays, padded with blanks, since freed blocks would be lost to others.

use std::{
    fs::{self, File, Permissions},
    io::{self, Write as _},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use rustix::fs::{CWD, OFlags, RenameFlags, renameat_with};

use super::{Readers, replace};

/// Size of a spare: health records of some hundred devices.
const BYTES: usize = 64 << 10;

/// Creates the spare of a file, unless it exists. Blocks.
pub(crate) fn keep(path: &Path) -> io::Result<()> {
    replace(&spare(path)?, &vec![b' '; BYTES], Readers::Owner).map(drop)
}

/// Replaces a file by its spare with this content. Blocks.
pub(crate) fn fill(path: &Path, content: &[u8], readers: Readers) -> io::Result<()> {
    let spare = spare(path)?;
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let mut file = File::options().write(true).custom_flags(flags).open(&spare)?;
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let length = usize::try_from(found.len()).unwrap_or(BYTES);
    file.set_permissions(Permissions::from_mode(readers.mode()))?;
    file.write_all(content)?;
    file.write_all(&vec![b' '; length.saturating_sub(content.len())])?;
    file.sync_all()?;
    if renameat_with(CWD, &spare, CWD, path, RenameFlags::EXCHANGE).is_err() {
        // The file does not exist yet, or the file system lacks exchange.
        fs::rename(&spare, path)?;
    }
    path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

fn spare(path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    Ok(path.with_file_name(format!(".{}.spare", name.to_string_lossy())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_new_file_takes_is_written_into_the_spare_as_often_as_need_be() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("a.json");
        let blocks = || {
            let files = fs::read_dir(folder.path()).expect("a folder").flatten();
            files.map(|file| file.metadata().expect("there").len()).sum::<u64>()
        };
        replace(&path, b"old", Readers::Owner).expect("written");
        keep(&path).expect("kept");
        let room = blocks();
        for content in ["one", "two"] {
            fill(&path, content.as_bytes(), Readers::Owner).expect("there is room");
            assert_eq!(fs::read_to_string(&path).expect("there").trim_end(), content);
            assert_eq!(blocks(), room, "no block more is needed");
        }
        keep(&path).expect("kept");
        fs::remove_file(&path).expect("there");
        fill(&path, b"three", Readers::Owner).expect("there is room");
        assert_eq!(fs::read_to_string(&path).expect("there").trim_end(), "three");
        let error = fill(&path, b"four", Readers::Owner).expect_err("the room is used");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
