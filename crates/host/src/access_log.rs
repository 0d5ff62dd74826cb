//! Record of a host's file accesses, to measure the cost of a scan.

use std::{
    path::{Path, PathBuf},
    sync::mpsc::{Receiver, Sender, channel},
};

/// Kind of access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AccessKind {
    /// File content.
    Text,
    /// Directory listing.
    Names,
    /// Link target.
    Link,
    /// File type.
    Kind,
}

/// Accesses to a host's files.
#[derive(Debug)]
pub struct AccessLog(Receiver<(AccessKind, PathBuf)>);

/// Sender of a log's accesses.
#[derive(Clone, Debug)]
pub(super) struct AccessRecorder(Sender<(AccessKind, PathBuf)>);

// === impl AccessLog ===

impl AccessLog {
    pub(super) fn new() -> (AccessRecorder, Self) {
        let (sender, receiver) = channel();
        (AccessRecorder(sender), Self(receiver))
    }

    /// Accesses since the last call.
    pub fn drain(&self) -> impl Iterator<Item = (AccessKind, PathBuf)> {
        self.0.try_iter()
    }
}

// === impl AccessRecorder ===

impl AccessRecorder {
    pub(super) fn record(&self, access: AccessKind, path: &Path) {
        // The receiver may be gone.
        let _ = self.0.send((access, path.to_owned()));
    }
}
