//! Folders of the agent, with fixed permissions that do not depend on its umask.

use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::fs::DirBuilderExt as _,
    path::Path,
};

use rustix::fs::{Mode, OFlags};

/// Writable only for the agent's user, so that others cannot add files. Readable for everyone; private files have their
/// own mode.
const MODE: u32 = 0o755;

/// Creates a folder and its missing parents. Existing folders keep their permissions.
pub fn create_dir_all(path: &Path) -> io::Result<()> {
    match create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        result => return result,
    }
    match path.parent() {
        Some(parent) => create_dir_all(parent).and_then(|()| create_dir(path)),
        None => Err(io::ErrorKind::NotFound.into()),
    }
}

/// Creates a folder in an existing folder, unless it exists.
pub fn create_dir(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(MODE).create(path) {
        Ok(()) => set_mode(path),
        Err(_) if fs::metadata(path).is_ok_and(|metadata| metadata.is_dir()) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Restores permissions that the umask removed.
fn set_mode(path: &Path) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = rustix::fs::open(path, flags, Mode::empty())?;
    Ok(rustix::fs::fchmod(folder, Mode::from_raw_mode(MODE))?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn new_folders_have_the_mode_and_existing_ones_keep_theirs() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        let before = mode(folder.path());
        let path = folder.path().join("a/b");
        create_dir_all(&path).expect("made");
        create_dir_all(&path).expect("there");
        assert_eq!((mode(&path), mode(&folder.path().join("a"))), (MODE, MODE));
        assert_eq!(mode(folder.path()), before);
        fs::write(path.join("file"), "").expect("written");
        let error = create_dir_all(&path.join("file/c")).expect_err("a file is in the way");
        assert_eq!(error.kind(), io::ErrorKind::NotADirectory);
    }

    /// A process has a single umask, so child processes run the test above.
    #[test]
    fn folders_are_the_same_whatever_the_umask() {
        super::super::tests::run_under_umasks(
            "files::folder::tests::new_folders_have_the_mode_and_existing_ones_keep_theirs",
        );
    }
}
