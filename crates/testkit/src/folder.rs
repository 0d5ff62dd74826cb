//! Temporary folders of tests.

use std::{cell::RefCell, path::PathBuf};

use tempfile::TempDir;

thread_local! {
    /// A test has a thread of its own, and its runtime ends before that does: what an agent still writes
    /// on another thread when it is dropped does not outlive the folder.
    static OF_THIS_TEST: RefCell<Vec<TempDir>> = const { RefCell::new(Vec::new()) };
}

/// A folder that is there until the test has ended. In memory where the machine has it: a simulated
/// machine is a thousand small files.
pub fn temporary_folder() -> PathBuf {
    let mut builder = tempfile::Builder::new();
    builder.prefix("wl");
    let folder = builder.tempdir_in("/dev/shm").or_else(|_| builder.tempdir());
    let folder = folder.expect("a temporary folder");
    let path = folder.path().to_owned();
    OF_THIS_TEST.with_borrow_mut(|folders| folders.push(folder));
    path
}
