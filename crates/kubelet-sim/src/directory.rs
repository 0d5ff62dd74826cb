//! The kubelet's folders: creation, the lock of the root folder, and the cleanup of the plugin folder at start.

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::FileTypeExt as _,
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, flock};
use windlass_kubelet_api::{checkpoint, dra::checkpoint::CPU_MANAGER_FILE};

use crate::config::{Config, PluginDirCleanup};

/// Lock file in the root folder. A kubelet holds the lock from its start until it is dropped.
const LOCK_FILE: &str = ".windlass-kubelet.lock";

/// Checkpoint of a CPU manager with policy `none`. The agent recognises the kubelet's folder by this
/// file.
const CPU_MANAGER_STATE: &str = r#"{"policyName":"none","defaultCpuSet":"","checksum":1353318690}"#;

/// Reasons why the folders cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// Another embedded kubelet has locked this root folder.
    #[error("another embedded kubelet runs on {0}: stop it or choose another root")]
    Locked(PathBuf),
    /// A system call failed.
    #[error("cannot {action} {path}")]
    Io {
        /// Attempted action.
        action: &'static str,
        /// File or folder of the action.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// Creates the folders and the CPU manager's checkpoint, and locks the root folder until the returned
/// file is dropped.
pub(crate) fn create_and_lock(config: &Config) -> Result<File, DirectoryError> {
    let pod_resources = config.pod_resources_socket();
    let folders = [
        Some(config.dir.as_path()),
        Some(&config.plugin_dir()),
        Some(&config.registry_dir()),
        Some(&config.drivers_dir()),
        pod_resources.parent(),
    ];
    for folder in folders.into_iter().flatten() {
        fs::create_dir_all(folder).map_err(|source| io_error("create folder", folder, source))?;
    }
    let path = config.dir.join(LOCK_FILE);
    let lock = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(|source| io_error("open lock file", &path, source))?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {
            let path = config.dir.join(CPU_MANAGER_FILE);
            let result = fs::write(&path, CPU_MANAGER_STATE);
            result.map_err(|source| io_error("write", &path, source)).map(|()| lock)
        }
        Err(rustix::io::Errno::WOULDBLOCK) => Err(DirectoryError::Locked(config.dir.clone())),
        Err(errno) => Err(io_error("lock", &path, errno.into())),
    }
}

/// True if the folder has no files, hidden ones aside.
pub(crate) fn is_empty(dir: &Path) -> Result<bool, DirectoryError> {
    let mut entries = fs::read_dir(dir).map_err(|source| io_error("read folder", dir, source))?;
    let is_hidden = |name: OsString| name.as_encoded_bytes().starts_with(b".");
    Ok(entries.all(|entry| entry.is_ok_and(|entry| is_hidden(entry.file_name()))))
}

/// Deletes the files in the plugin folder that a kubelet of the configured version deletes at its start.
pub(crate) fn clean_up(dir: &Path, cleanup: PluginDirCleanup) -> Result<(), DirectoryError> {
    match cleanup {
        PluginDirCleanup::Sockets => delete_sockets(dir),
        PluginDirCleanup::AllFiles => delete_files(dir, |path| {
            let is_checkpoint = path.file_name().is_some_and(|name| name == checkpoint::FILE_NAME);
            !is_checkpoint && !fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir())
        }),
    }
}

/// Deletes the sockets in the folder, and symbolic links to sockets. Other files stay, and so do
/// subfolders with their sockets. A failure does not end the loop; the first one is returned.
pub(crate) fn delete_sockets(dir: &Path) -> Result<(), DirectoryError> {
    delete_files(dir, |path| {
        fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket())
    })
}

fn delete_files(dir: &Path, is_selected: impl Fn(&Path) -> bool) -> Result<(), DirectoryError> {
    let entries = fs::read_dir(dir).map_err(|source| io_error("read folder", dir, source))?;
    let deletions = entries.map(|entry| {
        let path = entry.map_err(|source| io_error("read folder", dir, source))?.path();
        if is_selected(&path) { delete(&path) } else { Ok(()) }
    });
    deletions.fold(Ok(()), Result::and)
}

/// Deletes a file. A missing one is no failure: its plugin may have deleted it.
fn delete(path: &Path) -> Result<(), DirectoryError> {
    match fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(io_error("delete", path, source))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

fn io_error(action: &'static str, path: &Path, source: io::Error) -> DirectoryError {
    DirectoryError::Io { action, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cleanup_of_all_files_spares_the_checkpoint_and_subfolders() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = |name: &str| folder.path().join(name);
        let names = [checkpoint::FILE_NAME, ".lock", "file"];
        for name in names {
            fs::write(path(name), "").expect("written");
        }
        fs::create_dir(path("folder")).expect("a folder in it");
        let exists = || names.map(|name| path(name).exists());
        clean_up(folder.path(), PluginDirCleanup::Sockets).expect("cleaned up");
        assert_eq!(exists(), [true, true, true]);
        clean_up(folder.path(), PluginDirCleanup::AllFiles).expect("cleaned up");
        assert_eq!((exists(), path("folder").is_dir()), ([true, false, false], true));
    }

    #[test]
    fn deletion_of_a_missing_socket_succeeds_and_other_failures_are_reported() {
        delete(Path::new("/nonexistent/plugin.sock")).expect("a missing socket is no failure");
        let folder = tempfile::tempdir().expect("a temporary folder");
        // A folder stands in for a socket that cannot be deleted.
        let error = delete(folder.path()).expect_err("a folder is no file");
        assert!(error.to_string().starts_with("cannot delete "), "{error}");
    }
}
