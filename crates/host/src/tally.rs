//! Record of a host's file accesses, to measure the cost of a scan.

use std::{
    path::{Path, PathBuf},
    sync::mpsc::{Receiver, Sender, channel},
};

/// Kind of access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Question {
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
pub struct Tally(Receiver<(Question, PathBuf)>);

/// Sender of accesses.
#[derive(Clone, Debug)]
pub(super) struct Teller(Sender<(Question, PathBuf)>);

// === impl Tally ===

impl Tally {
    pub(super) fn new() -> (Teller, Self) {
        let (tell, told) = channel();
        (Teller(tell), Self(told))
    }

    /// Accesses since the last call.
    pub fn take(&self) -> impl Iterator<Item = (Question, PathBuf)> {
        self.0.try_iter()
    }
}

// === impl Teller ===

impl Teller {
    pub(super) fn tell(&self, question: Question, path: &Path) {
        // The receiver may be gone.
        let _ = self.0.send((question, path.to_owned()));
    }
}
