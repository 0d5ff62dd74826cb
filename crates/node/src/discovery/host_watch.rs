//! Notices from the host: a device came, went, or changed its driver.

use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{directory::DirectoryWatch, host::Host};

/// Counts notices from the host.
pub(crate) struct HostWatch {
    nodes: Option<DirectoryWatch>,
    changes: watch::Sender<u64>,
}

/// How often sources look without a notice, should one have been lost.
const AT_LEAST_EVERY: Duration = Duration::from_secs(60);

// === impl HostWatch ===

impl HostWatch {
    /// Begins to listen. What cannot be listened to is left to the regular look.
    pub(crate) fn new(host: &Host) -> (Self, watch::Receiver<u64>) {
        let (changes, receiver) = watch::channel(0);
        (Self { nodes: DirectoryWatch::new(&host.path("/dev")).ok(), changes }, receiver)
    }

    /// Counts until stopped.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let counting = async {
            match self.nodes {
                Some(nodes) => nodes.run(self.changes, AT_LEAST_EVERY).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = counting => {}
        }
    }
}
