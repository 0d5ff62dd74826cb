//! Sockets below a folder, and notices of changes.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use inotify::{EventStream, Inotify, WatchMask};
use tokio_stream::StreamExt as _;
use windlass_kubelet_api::socket::{SocketIdentity, SocketPath};

const INTERESTING: WatchMask =
    WatchMask::CREATE.union(WatchMask::DELETE).union(WatchMask::MOVE).union(WatchMask::ONLYDIR);

/// Room for some dozens of notices per read.
const BUFFER_BYTES: usize = 4096;

/// A folder with a watch, if the kernel grants one.
pub(super) struct Folder {
    path: PathBuf,
    notices: Option<EventStream<[u8; BUFFER_BYTES]>>,
}

// === impl Folder ===

impl Folder {
    /// Starts the watch. Subfolders are seen only by the periodic look.
    pub(super) fn watch(path: PathBuf) -> Self {
        let notices = Inotify::init().and_then(|queue| {
            queue.watches().add(&path, INTERESTING)?;
            queue.into_event_stream([0; BUFFER_BYTES])
        });
        let notices = notices
            .inspect_err(|error| tracing::warn!(path = %path.display(), %error, "cannot watch"))
            .ok();
        Self { path, notices }
    }

    /// Waits for a change. Without a watch this never returns: the caller looks periodically.
    pub(super) async fn changed(&mut self) {
        let Some(notices) = &mut self.notices else { return std::future::pending().await };
        if !matches!(notices.next().await, Some(Ok(_))) {
            self.notices = None;
        }
    }

    /// Current sockets, without those whose names begin with a dot.
    pub(super) fn sockets(&self) -> BTreeMap<PathBuf, SocketIdentity> {
        let mut found = BTreeMap::new();
        collect(&self.path, &mut found);
        found
    }
}

fn collect(folder: &Path, found: &mut BTreeMap<PathBuf, SocketIdentity>) {
    // The next look tries an unreadable folder again.
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            collect(&path, found);
        } else if let Ok(socket) = SocketPath::new(&path)
            && let Some(identity) = socket.identity()
        {
            found.insert(path, identity);
        }
    }
}
