//! Folder with an inotify watch: lists the sockets below it, and waits for changes.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use inotify::{EventStream, Inotify, WatchMask};
use tokio_stream::StreamExt as _;
use windlass_kubelet_api::socket::{SocketIdentity, SocketPath};

/// Changes that wake the watcher.
const WATCHED_EVENTS: WatchMask =
    WatchMask::CREATE.union(WatchMask::DELETE).union(WatchMask::MOVE).union(WatchMask::ONLYDIR);

/// Size of the read buffer: some dozens of inotify events.
const BUFFER_BYTES: usize = 4096;

/// A folder and its inotify watch, if the kernel grants one.
pub(super) struct Folder {
    path: PathBuf,
    events: Option<EventStream<[u8; BUFFER_BYTES]>>,
}

// === impl Folder ===

impl Folder {
    /// Starts the watch of the folder itself. Only the periodic scan finds changes in subfolders.
    pub(super) fn watch(path: PathBuf) -> Self {
        let events = Inotify::init().and_then(|inotify| {
            inotify.watches().add(&path, WATCHED_EVENTS)?;
            inotify.into_event_stream([0; BUFFER_BYTES])
        });
        let events = events
            .inspect_err(|error| tracing::warn!(path = %path.display(), %error, "cannot watch"))
            .ok();
        Self { path, events }
    }

    /// Waits for a change, or for the failure of the watch. Without a watch this never returns, so the
    /// caller also scans periodically.
    pub(super) async fn changed(&mut self) {
        let Some(events) = &mut self.events else { return std::future::pending().await };
        if !matches!(events.next().await, Some(Ok(_))) {
            self.events = None;
        }
    }

    /// Current sockets in the folder and its subfolders. Names that begin with a dot are skipped.
    pub(super) fn sockets(&self) -> BTreeMap<PathBuf, SocketIdentity> {
        let mut sockets = BTreeMap::new();
        collect_sockets(&self.path, &mut sockets);
        sockets
    }
}

fn collect_sockets(folder: &Path, sockets: &mut BTreeMap<PathBuf, SocketIdentity>) {
    // An unreadable folder counts as empty. The next scan reads it again.
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        if entry.file_type().is_ok_and(|file_type| file_type.is_dir()) {
            collect_sockets(&path, sockets);
        } else if let Ok(socket) = SocketPath::new(&path)
            && let Some(identity) = socket.identity()
        {
            sockets.insert(path, identity);
        }
    }
}
