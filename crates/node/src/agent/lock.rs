//! File locks that reserve a node for one agent, on paths that no kubelet deletes.
//!
//! | locked (`flock`) | excludes |
//! | --- | --- |
//! | the kubelet's plugin folder | every other agent of this kubelet |
//! | the state folder | an agent that would write the same state files, even for another kubelet |
//! | the file `.windlass.lock` in the plugin folder | agents of version 0.1.0, which lock nothing else |
//!
//! The file alone does not suffice: at their start, kubelets 1.20 to 1.30 and 1.31.1 to 1.32 delete every file of the
//! folder except their checkpoint (`CleanupPluginDirectory`; Kubernetes pull requests 97576, 123819, 126976, 130187).
//! The kernel releases the locks when the agent ends.
//!
//! A lock belongs to an open file, not to its path. At each event in the kubelet's folder, and regularly, the agent
//! compares the inode of the open file with that of the path:
//!
//! ```text
//!                the path names another inode, whose lock is free
//!               ┌────────────────────────────┐
//!               v                            │
//!   start ──> held ──────────────────────────┴──> lost: the agent ends
//!     │       ^  │                     another agent has the lock of the inode that the path names,
//!     v       └──┘ the path            or the folder was deleted under a mount
//!  refused         is missing
//! ```
//!
//! # Guarantees
//!
//! At most one agent uses a state folder. If agents have different state folders and the second starts between the
//! deletion of the kubelet's folder and the first one's check, the second wins: the first ends before it binds a
//! socket in the new folder, because events are forwarded after the lock check.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FlockOperation, Mode, OFlags},
    io::Errno,
};
use tokio::sync::watch;
use windlass_host::{blocking, files::folder};

use super::StartError;

/// Locks on the node, held until dropped.
#[derive(Debug)]
pub(super) struct NodeLock {
    plugins: Lock,
    state: Lock,
    file: Lock,
}

/// Lock on the inode that a path named when the lock was taken.
#[derive(Debug)]
struct Lock {
    path: PathBuf,
    /// Opens the path. Creates a missing state folder or file first.
    open: fn(&Path) -> io::Result<File>,
    held: Option<(File, FileIdentity)>,
}

/// Device and inode. An open file keeps its inode.
type FileIdentity = (u64, u64);

/// Holder of the lock on the inode that a path names now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LockState {
    /// This agent, as before.
    Held,
    /// This agent, since this check.
    Acquired,
    HeldByOther,
    /// The folder was deleted and is reachable through a mount only.
    Orphaned,
}

/// Loss of the node to another agent.
#[derive(Debug, thiserror::Error)]
pub enum LockLost {
    /// Another process has the lock.
    #[error("another windlass node took {0} over after it was replaced: this one ends")]
    TakenOver(PathBuf),
    /// The folder was deleted, and a mount still shows it.
    #[error("{0} was deleted on the host, and this agent still has it mounted: restart the agent")]
    Deleted(PathBuf),
}

/// File in the plugin folder that is locked. A leading dot hides it from a kubelet, which takes any other file in the
/// folder for a trace of its own earlier run.
const LOCK_FILE: &str = ".windlass.lock";

// === impl NodeLock ===

impl NodeLock {
    /// Locks the node. Creates the plugin folder inside an existing kubelet folder, never the kubelet folder itself:
    /// an empty one would look like a kubelet's. A state folder that cannot be locked is tolerated.
    pub(super) fn acquire(dir: &Path, state_dir: &Path) -> Result<Self, StartError> {
        let folder_error =
            |source| StartError::Folder { path: dir.to_owned(), flag: "--kubelet-dir", source };
        folder::create_dir(dir).map_err(folder_error)?;
        let mut locks = Self {
            plugins: Lock::new(dir.to_owned(), open_folder),
            state: Lock::new(state_dir.to_owned(), make_and_open_folder),
            file: Lock::new(dir.join(LOCK_FILE), open_file),
        };
        if locks.plugins.try_lock().map_err(folder_error)? == LockState::HeldByOther {
            return Err(StartError::KubeletInUse(dir.to_owned()));
        }
        match locks.state.try_lock() {
            Ok(LockState::HeldByOther) => {
                return Err(StartError::StateFolderInUse(state_dir.to_owned()));
            }
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(path = %state_dir.display(), %error, "state folder not locked");
            }
        }
        match locks.file.try_lock() {
            Ok(LockState::HeldByOther) => Err(StartError::KubeletInUse(dir.to_owned())),
            Ok(_) => Ok(locks),
            Err(source) => Err(StartError::Lock(dir.join(LOCK_FILE), source)),
        }
    }

    /// Checks the locks at each event and forwards the event, until a lock is lost. The remaining locks are held until
    /// the returned value is dropped.
    pub(super) async fn guard(
        mut self,
        mut events: watch::Receiver<u64>,
        forwarder: &watch::Sender<u64>,
    ) -> (Self, LockLost) {
        while events.changed().await.is_ok() {
            // A hanging disk blocks this task only.
            let (outcome, lock) = blocking(move || (self.check(), self)).await;
            if let Err(lost) = outcome {
                return (lock, lost);
            }
            self = lock;
            forwarder.send_modify(|count| *count += 1);
        }
        // The sender has ended, which ends the agent.
        std::future::pending().await
    }

    fn check(&mut self) -> Result<(), LockLost> {
        let Self { plugins, state, file } = self;
        [plugins, state, file].into_iter().try_for_each(Lock::verify)
    }
}

// === impl Lock ===

impl Lock {
    fn new(path: PathBuf, open: fn(&Path) -> io::Result<File>) -> Self {
        Self { path, open, held: None }
    }

    /// Locks the inode that the path names now, unless this lock has it already.
    fn try_lock(&mut self) -> io::Result<LockState> {
        let file = (self.open)(&self.path)?;
        let metadata = file.metadata()?;
        if metadata.nlink() == 0 {
            return Ok(LockState::Orphaned);
        }
        let identity = (metadata.dev(), metadata.ino());
        if self.held.as_ref().is_some_and(|(_, held_identity)| *held_identity == identity) {
            return Ok(LockState::Held);
        }
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                self.held = Some((file, identity));
                Ok(LockState::Acquired)
            }
            Err(Errno::WOULDBLOCK) => Ok(LockState::HeldByOther),
            Err(error) => Err(error.into()),
        }
    }

    /// Checks the lock. A missing or unreadable path is no loss: no other agent can lock it.
    fn verify(&mut self) -> Result<(), LockLost> {
        match self.try_lock() {
            Ok(LockState::Acquired) => {
                tracing::info!(path = %self.path.display(), "path was replaced, locked again");
                Ok(())
            }
            Ok(LockState::HeldByOther) => Err(LockLost::TakenOver(self.path.clone())),
            Ok(LockState::Orphaned) => Err(LockLost::Deleted(self.path.clone())),
            Ok(LockState::Held) | Err(_) => Ok(()),
        }
    }
}

impl Drop for Lock {
    /// Unlocks. Closing the file does not suffice: a child process has a copy of its descriptor until it executes its
    /// program.
    fn drop(&mut self) {
        if let Some((file, _)) = &self.held {
            // It fails only for a file that cannot be locked.
            let _ = rustix::fs::flock(file, FlockOperation::Unlock);
        }
    }
}

fn open_folder(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
}

fn make_and_open_folder(path: &Path) -> io::Result<File> {
    folder::create_dir_all(path)?;
    open_folder(path)
}

/// Opens the file; creates it again if a kubelet deleted it.
fn open_file(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK | OFlags::NOFOLLOW;
    let mut options = fs::OpenOptions::new();
    let options = options.create(true).truncate(false).read(true).write(true).mode(0o600);
    let file = options.custom_flags(flags.bits().cast_signed()).open(path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use tempfile::TempDir;

    use super::*;

    /// A kubelet's plugin folder, and two state folders.
    fn folders() -> (TempDir, [PathBuf; 3]) {
        let root = tempfile::tempdir().expect("a temporary folder");
        let paths = ["plugins", "state", "other"].map(|name| root.path().join(name));
        (root, paths)
    }

    fn replace(folder: &Path) {
        fs::remove_dir_all(folder).expect("removed");
        fs::create_dir(folder).expect("created again");
    }

    #[test]
    fn a_second_agent_of_the_kubelet_or_of_the_state_folder_is_refused_though_the_file_was_deleted()
    {
        let (root, [dir, state, other]) = folders();
        let first = NodeLock::acquire(&dir, &state).expect("free");
        fs::remove_file(dir.join(LOCK_FILE)).expect("a kubelet cleans up");
        let second = NodeLock::acquire(&dir, &other).expect_err("refused");
        assert!(matches!(second, StartError::KubeletInUse(_)), "{second}");
        let second = NodeLock::acquire(&root.path().join("another kubelet's"), &state);
        let second = second.expect_err("refused");
        assert!(matches!(second, StartError::StateFolderInUse(_)), "{second}");
        drop(first);
        NodeLock::acquire(&dir, &state).expect("the first has ended");
    }

    #[test]
    fn an_agent_of_version_0_1_0_and_a_newer_one_refuse_each_other() {
        let (_root, [dir, state, _]) = folders();
        let lock = || {
            rustix::fs::flock(
                open_file(&dir.join(LOCK_FILE)).expect("open"),
                FlockOperation::NonBlockingLockExclusive,
            )
        };
        let mut first = NodeLock::acquire(&dir, &state).expect("free");
        lock().expect_err("the first agent has the file");
        fs::remove_file(dir.join(LOCK_FILE)).expect("a kubelet cleans up");
        first.check().expect("its own");
        lock().expect_err("the new file is locked again");
        drop(first);
        let older = open_file(&dir.join(LOCK_FILE)).expect("open");
        rustix::fs::flock(&older, FlockOperation::NonBlockingLockExclusive).expect("free");
        let second = NodeLock::acquire(&dir, &state).expect_err("refused");
        assert!(matches!(second, StartError::KubeletInUse(_)), "{second}");
    }

    #[test]
    fn a_recreated_folder_is_locked_again_and_a_missing_one_is_awaited() {
        let (_root, [dir, state, other]) = folders();
        let mut first = NodeLock::acquire(&dir, &state).expect("free");
        fs::remove_dir_all(&dir).expect("removed");
        first.check().expect("a missing folder is no loss");
        fs::create_dir(&dir).expect("created again");
        replace(&state);
        first.check().expect("both are free");
        for (dir, state) in [(&dir, &other), (&other, &state)] {
            NodeLock::acquire(dir, state).expect_err("the first has them again");
        }
    }

    #[test]
    fn an_agent_that_finds_the_new_folder_locked_has_lost_the_node() {
        let (_root, [dir, state, other]) = folders();
        let mut first = NodeLock::acquire(&dir, &state).expect("free");
        replace(&dir);
        NodeLock::acquire(&dir, &state).expect_err("the first has the state folder");
        let _second = NodeLock::acquire(&dir, &other).expect("the new folder is free");
        let lost = first.check().expect_err("the second has it").to_string();
        assert!(lost.contains("another windlass node took"), "{lost}");
    }

    #[test]
    fn a_deleted_folder_that_a_mount_still_shows_is_lost() {
        let (_root, [dir, state, _]) = folders();
        fs::create_dir(&dir).expect("created");
        let folder = open_folder(&dir).expect("open");
        // As a mount does, this path reaches the folder even after its name is deleted.
        let mount = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd()));
        let mut first = NodeLock::acquire(&mount, &state).expect("free");
        first.check().expect("the folder exists");
        fs::remove_dir_all(&dir).expect("removed");
        let lost = first.check().expect_err("a deleted folder").to_string();
        assert!(lost.contains("deleted on the host"), "{lost}");
    }

    #[test]
    fn a_fifo_in_the_place_of_the_file_is_refused_at_once() {
        let (_root, [dir, state, _]) = folders();
        fs::create_dir(&dir).expect("created");
        let (kind, mode) = (rustix::fs::FileType::Fifo, Mode::RUSR | Mode::WUSR);
        rustix::fs::mknodat(rustix::fs::CWD, dir.join(LOCK_FILE), kind, mode, 0).expect("a FIFO");
        let error = NodeLock::acquire(&dir, &state).expect_err("refused");
        assert!(matches!(error, StartError::Lock(..)), "{error}");
        assert!(windlass_host::causes(&error).contains("not a regular file"), "{error}");
    }
}
