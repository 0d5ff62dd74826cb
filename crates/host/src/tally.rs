//! What the files of a host were asked, for whoever wants to know what a look costs.

use std::{
    path::{Path, PathBuf},
    sync::mpsc::{Receiver, Sender, channel},
};

/// What a file is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Question {
    /// What it says.
    Text,
    /// What is in it.
    Names,
    /// Where it leads.
    Link,
    /// What it is.
    Kind,
}

/// Every question that is put to a host.
#[derive(Debug)]
pub struct Tally(Receiver<(Question, PathBuf)>);

/// Tells of each question.
#[derive(Clone, Debug)]
pub(super) struct Teller(Sender<(Question, PathBuf)>);

// === impl Tally ===

impl Tally {
    pub(super) fn new() -> (Teller, Self) {
        let (tell, told) = channel();
        (Teller(tell), Self(told))
    }

    /// The questions since they were taken last.
    pub fn take(&self) -> impl Iterator<Item = (Question, PathBuf)> {
        self.0.try_iter()
    }
}

// === impl Teller ===

impl Teller {
    pub(super) fn tell(&self, question: Question, path: &Path) {
        // Nobody may want to know any more.
        let _ = self.0.send((question, path.to_owned()));
    }
}
