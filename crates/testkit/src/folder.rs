//! Temporary folders of tests.

use std::{cell::RefCell, path::PathBuf};

use tempfile::TempDir;

thread_local! {
    /// Folders to remove when the thread ends. Each test has its own thread, and its runtime ends before that thread.
    /// So a dropped agent finishes its writes on other threads before the removal.
    static FOLDERS: RefCell<Vec<TempDir>> = const { RefCell::new(Vec::new()) };
}

/// Creates a folder that is removed when the test ends. It is in memory if the machine has `/dev/shm`, because a
/// simulated machine has a thousand small files.
pub fn temporary_folder() -> PathBuf {
    let mut builder = tempfile::Builder::new();
    builder.prefix("wl");
    let folder = builder.tempdir_in("/dev/shm").or_else(|_| builder.tempdir());
    let folder = folder.expect("a temporary folder");
    let path = folder.path().to_owned();
    FOLDERS.with_borrow_mut(|folders| folders.push(folder));
    path
}
