//! Change notifications of many directories in one inotify instance: the kernel limits the instances of a user.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use inotify::{EventMask, EventStream, Inotify, WatchDescriptor, WatchMask, Watches};
use tokio_stream::StreamExt as _;

use crate::directory::{BUFFER_BYTES, CONTENT_EVENTS, ENTRY_EVENTS};

/// Watches of directories, which may change while they are in use.
#[derive(Debug)]
pub struct DirectoryWatches {
    watches: Watches,
    events: EventStream<[u8; BUFFER_BYTES]>,
    watched: BTreeMap<PathBuf, WatchDescriptor>,
}

/// Changes of a directory that a watch reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectoryChanges {
    /// Entries that appear and disappear.
    Entries,
    /// Entries, and writes to files. Every program writes to files of `/dev`.
    Contents,
}

// === impl DirectoryWatches ===

impl DirectoryWatches {
    /// Creates the inotify instance, without a watch.
    pub fn new() -> io::Result<Self> {
        let queue = Inotify::init()?;
        let watches = queue.watches();
        let events = queue.into_event_stream([0; BUFFER_BYTES])?;
        Ok(Self { watches, events, watched: BTreeMap::new() })
    }

    /// Watches exactly the requested directories. Adding a watched directory again renews the watch if the directory
    /// was replaced, and has no effect otherwise.
    pub fn watch_exactly(&mut self, requested: &BTreeMap<PathBuf, DirectoryChanges>) {
        let is_removed = |path: &&PathBuf| !requested.contains_key(*path);
        let removed: Vec<_> = self.watched.keys().filter(is_removed).cloned().collect();
        for watch in removed.iter().filter_map(|path| self.watched.remove(path)) {
            // The kernel removes the watch of a deleted directory itself.
            let _ = self.watches.remove(watch);
        }
        for (path, changes) in requested {
            self.add(path, changes.mask());
        }
    }

    fn add(&mut self, path: &Path, mask: WatchMask) {
        match self.watches.add(path, mask) {
            Ok(watch) => drop(self.watched.insert(path.to_owned(), watch)),
            Err(error) => {
                // The caller learns of the directory by an event of its parent, or by regular scans.
                tracing::debug!(%error, path = %path.display(), "directory not watched");
                self.watched.remove(path);
            }
        }
    }

    /// Waits for an event. Waits forever if inotify failed.
    pub async fn changed(&mut self) {
        loop {
            match self.events.next().await {
                // The kernel reports the end of a watch after its cause.
                Some(Ok(event)) if event.mask == EventMask::IGNORED => {}
                Some(Ok(_)) => return,
                Some(Err(_)) | None => std::future::pending().await,
            }
        }
    }
}

// === impl DirectoryChanges ===

impl DirectoryChanges {
    fn mask(self) -> WatchMask {
        match self {
            Self::Entries => ENTRY_EVENTS,
            Self::Contents => CONTENT_EVENTS,
        }
    }
}
