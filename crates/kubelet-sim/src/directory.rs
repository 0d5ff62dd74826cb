//! The kubelet's folders: one kubelet per root, and the deletion of stale plugin sockets at start.

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::FileTypeExt as _,
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, flock};
use windlass_kubelet_api::{checkpoint, dra::checkpoint::NEIGHBOUR};

use crate::config::{Cleanup, Config};

/// Lock file, held while a kubelet lives on a root.
const LOCK: &str = ".windlass-kubelet.lock";

/// State of a CPU manager without a policy. Agents recognise the kubelet's folder by this file.
const CPU_MANAGER_STATE: &str = r#"{"policyName":"none","defaultCpuSet":"","checksum":1353318690}"#;

/// Reasons why the folders cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// Another embedded kubelet runs there.
    #[error("another embedded kubelet runs on {0}: stop it or choose another root")]
    Taken(PathBuf),
    /// A system call failed.
    #[error("cannot {action} {path}")]
    Io {
        /// Attempted action.
        action: &'static str,
        /// Path of the action.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// Creates the folders, and locks the root until the file is dropped.
pub(crate) fn claim(config: &Config) -> Result<File, DirectoryError> {
    let pod_resources = config.pod_resources_socket();
    let folders = [
        Some(config.dir.as_path()),
        Some(&config.plugin_dir()),
        Some(&config.registry_dir()),
        Some(&config.drivers_dir()),
        pod_resources.parent(),
    ];
    for folder in folders.into_iter().flatten() {
        fs::create_dir_all(folder).map_err(|source| failed("create folder", folder, source))?;
    }
    let path = config.dir.join(LOCK);
    let lock = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(|source| failed("open lock file", &path, source))?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {
            let path = config.dir.join(NEIGHBOUR);
            let written = fs::write(&path, CPU_MANAGER_STATE);
            written.map_err(|source| failed("write", &path, source)).map(|()| lock)
        }
        Err(rustix::io::Errno::WOULDBLOCK) => Err(DirectoryError::Taken(config.dir.clone())),
        Err(errno) => Err(failed("lock", &path, errno.into())),
    }
}

/// True if the folder holds hidden files only.
pub(crate) fn is_empty(dir: &Path) -> Result<bool, DirectoryError> {
    let mut entries = fs::read_dir(dir).map_err(|source| failed("read folder", dir, source))?;
    let is_hidden = |name: OsString| name.as_encoded_bytes().starts_with(b".");
    Ok(entries.all(|entry| entry.is_ok_and(|entry| is_hidden(entry.file_name()))))
}

/// Deletes the files that a starting kubelet deletes.
pub(crate) fn clean_up(dir: &Path, cleanup: Cleanup) -> Result<(), DirectoryError> {
    match cleanup {
        Cleanup::Sockets => wipe_sockets(dir),
        Cleanup::AllFiles => wipe(dir, |path| {
            let is_its_own = path.file_name().is_some_and(|name| name == checkpoint::FILE);
            !is_its_own && !fs::symlink_metadata(path).is_ok_and(|found| found.is_dir())
        }),
    }
}

/// Deletes every socket directly in the folder, and links to sockets. Other files and deeper
/// sockets stay. All are tried; the first failure is returned.
pub(crate) fn wipe_sockets(dir: &Path) -> Result<(), DirectoryError> {
    wipe(dir, |path| fs::metadata(path).is_ok_and(|found| found.file_type().is_socket()))
}

fn wipe(dir: &Path, is_wiped: impl Fn(&Path) -> bool) -> Result<(), DirectoryError> {
    let entries = fs::read_dir(dir).map_err(|source| failed("read folder", dir, source))?;
    let wiped = entries.map(|entry| {
        let path = entry.map_err(|source| failed("read folder", dir, source))?.path();
        if is_wiped(&path) { delete(&path) } else { Ok(()) }
    });
    wiped.fold(Ok(()), Result::and)
}

/// Deletes a socket that is there or was a moment ago: its plugin may delete it too.
fn delete(socket: &Path) -> Result<(), DirectoryError> {
    match fs::remove_file(socket) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(failed("delete socket", socket, source))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

fn failed(action: &'static str, path: &Path, source: io::Error) -> DirectoryError {
    DirectoryError::Io { action, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_kubelet_leaves_its_own_record_and_folders_alone() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let at = |name: &str| folder.path().join(name);
        let names = [checkpoint::FILE, ".lock", "note"];
        for name in names {
            fs::write(at(name), "").expect("written");
        }
        fs::create_dir(at("folder")).expect("made");
        let left = || names.map(|name| at(name).exists());
        clean_up(folder.path(), Cleanup::Sockets).expect("cleaned up");
        assert_eq!(left(), [true, true, true]);
        clean_up(folder.path(), Cleanup::AllFiles).expect("cleaned up");
        assert_eq!((left(), at("folder").is_dir()), ([true, false, false], true));
    }

    #[test]
    fn a_socket_that_its_plugin_deleted_first_is_deleted() {
        delete(Path::new("/nonexistent/plugin.sock")).expect("it is not there");
        let folder = tempfile::tempdir().expect("a temporary folder");
        // A folder stands in for a socket that cannot be deleted.
        let refused = delete(folder.path()).expect_err("a folder is no file");
        assert!(refused.to_string().starts_with("cannot delete socket "), "{refused}");
    }
}
