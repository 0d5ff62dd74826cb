//! Temporary folders of tests.

use std::{cell::RefCell, path::PathBuf};

use tempfile::TempDir;

thread_local! {
    /// Each test has its own thread, and its runtime ends before that thread. Writes that a dropped agent finishes on
    /// another thread end before the folder is removed.
    static OF_THIS_TEST: RefCell<Vec<TempDir>> = const { RefCell::new(Vec::new()) };
}

/// Creates a folder that lasts until the test ends. The folder is in memory if the machine has `/dev/shm`: a
/// simulated machine is a thousand small files.
pub fn temporary_folder() -> PathBuf {
    let mut builder = tempfile::Builder::new();
    builder.prefix("wl");
    let folder = builder.tempdir_in("/dev/shm").or_else(|_| builder.tempdir());
    let folder = folder.expect("a temporary folder");
    let path = folder.path().to_owned();
    OF_THIS_TEST.with_borrow_mut(|folders| folders.push(folder));
    path
}
