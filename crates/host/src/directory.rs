//! Change notifications of a directory, by inotify.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use inotify::{EventMask, EventStream, Inotify, WatchMask, Watches};
use tokio::{sync::watch, time::timeout};
use tokio_stream::StreamExt as _;

/// Watch of the directory at a path. Another directory may replace it at that path.
#[derive(Debug)]
pub struct DirectoryWatch {
    path: PathBuf,
    event_mask: WatchMask,
    watches: Watches,
    events: EventStream<[u8; BUFFER_BYTES]>,
}

/// Events of a directory's entries, and of the directory itself.
pub(crate) const ENTRY_EVENTS: WatchMask = WatchMask::CREATE
    .union(WatchMask::DELETE)
    .union(WatchMask::MOVE)
    .union(WatchMask::DELETE_SELF)
    .union(WatchMask::MOVE_SELF)
    .union(WatchMask::ONLYDIR);

/// Events of entries, and of writes to files.
pub(crate) const CONTENT_EVENTS: WatchMask = ENTRY_EVENTS.union(WatchMask::CLOSE_WRITE);

/// Events after which the path may lead to another directory: events of the directory itself, and lost events.
const DIRECTORY_EVENTS: EventMask = EventMask::DELETE_SELF
    .union(EventMask::MOVE_SELF)
    .union(EventMask::IGNORED)
    .union(EventMask::Q_OVERFLOW);

/// Buffer for some dozens of events per read.
pub(crate) const BUFFER_BYTES: usize = 4096;

// === impl DirectoryWatch ===

impl DirectoryWatch {
    /// Watches for entries that appear and disappear.
    pub fn new(path: &Path) -> io::Result<Self> {
        Self::with(path, ENTRY_EVENTS)
    }

    /// Watches for entries, and also for writes to files.
    pub fn with_contents(path: &Path) -> io::Result<Self> {
        Self::with(path, CONTENT_EVENTS)
    }

    fn with(path: &Path, event_mask: WatchMask) -> io::Result<Self> {
        let queue = Inotify::init()?;
        let mut watches = queue.watches();
        watches.add(path, event_mask)?;
        let events = queue.into_event_stream([0; BUFFER_BYTES])?;
        Ok(Self { path: path.to_owned(), event_mask, watches, events })
    }

    /// Increments `changes` at each event, and at least once per `at_least_every`, since the kernel drops events if its
    /// queue is full. Ends when `changes` has no receiver.
    pub async fn run(mut self, changes: watch::Sender<u64>, at_least_every: Duration) {
        loop {
            let event = tokio::select! {
                event = timeout(at_least_every, self.event()) => event,
                () = changes.closed() => return,
            };
            if !event.is_ok_and(|mask| !mask.intersects(DIRECTORY_EVENTS)) {
                // Watches the directory at the path now. Adding the same directory again changes nothing; a missing
                // directory is tried again after the interval.
                let _ = self.watches.add(&self.path, self.event_mask);
            }
            changes.send_modify(|count| *count += 1);
        }
    }

    /// Waits for the next event. Waits forever if inotify failed.
    async fn event(&mut self) -> EventMask {
        match self.events.next().await {
            Some(Ok(event)) => event.mask,
            Some(Err(_)) | None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn next(changes: &mut watch::Receiver<u64>) {
        let limit = Duration::from_secs(5);
        tokio::time::timeout(limit, changes.changed()).await.expect("in time").expect("running");
    }

    /// Makes more changes than the kernel's queue holds.
    fn overflow_queue(path: &Path) {
        let text = std::fs::read_to_string("/proc/sys/fs/inotify/max_queued_events");
        let max_queued: usize = text.expect("readable").trim().parse().expect("a number");
        for _ in 0..=max_queued / 2 {
            std::fs::write(path.join("a"), "").expect("written");
            std::fs::remove_file(path.join("a")).expect("removed");
        }
    }

    #[tokio::test]
    async fn a_replaced_directory_is_watched_even_if_its_event_was_lost() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join("watched");
        std::fs::create_dir(&path).expect("created");
        let directory_watch = DirectoryWatch::new(&path).expect("a watch");
        overflow_queue(&path);
        std::fs::rename(&path, dir.path().join("away")).expect("renamed");
        std::fs::create_dir(&path).expect("created");
        let (sender, mut changes) = watch::channel(0);
        let local = tokio::task::LocalSet::new();
        local.spawn_local(directory_watch.run(sender, Duration::from_secs(600)));
        let changes_made = async {
            let quiet = Duration::from_millis(500);
            while let Ok(Ok(())) = tokio::time::timeout(quiet, changes.changed()).await {}
            std::fs::write(path.join("b"), "").expect("written");
            next(&mut changes).await;
        };
        local.run_until(changes_made).await;
    }

    #[tokio::test]
    async fn changes_are_counted_after_the_directory_was_replaced() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join("watched");
        std::fs::create_dir(&path).expect("created");
        let directory_watch = DirectoryWatch::new(&path).expect("a watch");
        let (sender, mut changes) = watch::channel(0);
        let local = tokio::task::LocalSet::new();
        local.spawn_local(directory_watch.run(sender, Duration::from_millis(50)));
        let changes_made = async {
            std::fs::write(path.join("a"), "").expect("written");
            next(&mut changes).await;
            std::fs::remove_dir_all(&path).expect("removed");
            std::fs::create_dir(&path).expect("created");
            next(&mut changes).await;
            // The regular event finds the new directory and watches it.
            next(&mut changes).await;
        };
        local.run_until(changes_made).await;
    }
}
