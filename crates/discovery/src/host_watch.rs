//! Change notifications of the host: devices that appear, vanish, or change drivers.
//!
//! The kernel reports devices by netlink and files by inotify. A notification only triggers a scan. Where neither
//! works, scans at the probe interval find the changes.

mod folders;

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, time::sleep};
use tokio_util::sync::CancellationToken;
use windlass_config::Policy;
use windlass_host::{Host, directories::DirectoryWatches, or_pending, uevents::Uevents};

use self::folders::watched_folders;

/// Task that counts host events for the sources.
#[derive(Debug)]
pub struct HostWatch {
    host: Host,
    policy: watch::Receiver<Arc<Policy>>,
    /// Boxed for its large event buffer.
    folders: Option<Box<DirectoryWatches>>,
    uevents: Option<Uevents>,
    changes: watch::Sender<u64>,
}

/// Interval at which the counter increases without a kernel event, in case an event was lost.
const FALLBACK_INTERVAL: Duration = Duration::from_secs(60);

// === impl HostWatch ===

impl HostWatch {
    /// Subscribes to events of devices, and of folders of configured sources. The receiver holds the event count.
    pub fn new(host: &Host, policy: watch::Receiver<Arc<Policy>>) -> (Self, watch::Receiver<u64>) {
        let (changes, receiver) = watch::channel(0);
        // Simulated machines have no kernel events.
        let uevents = if host.simulated().is_some() {
            None
        } else {
            log_failed_subscription(Uevents::new(), "uevents")
        };
        let folders = log_failed_subscription(DirectoryWatches::new(), "folders").map(Box::new);
        let mut watch = Self { host: host.clone(), policy, folders, uevents, changes };
        watch.update_watches();
        (watch, receiver)
    }

    /// Counts events until stopped.
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = or_pending(self.uevents.as_mut().map(Uevents::next)) => {}
                () = or_pending(self.folders.as_mut().map(|folders| folders.changed())) => self.update_watches(),
                Ok(()) = self.policy.changed() => self.update_watches(),
                () = sleep(FALLBACK_INTERVAL) => self.update_watches(),
            }
            // The count increases after the subscription to new folders, so that no later event is lost.
            self.changes.send_modify(|count| *count += 1);
        }
    }

    /// Updates the subscription to the folders that the sources need now.
    fn update_watches(&mut self) {
        let policy = self.policy.borrow_and_update().clone();
        if let Some(folders) = &mut self.folders {
            folders.watch_exactly(&watched_folders(&self.host, &policy));
        }
    }
}

/// Result of a subscription. A failure is logged once at debug level, as an explanation of late scans.
fn log_failed_subscription<T>(subscription: std::io::Result<T>, description: &str) -> Option<T> {
    subscription
        .map_err(|error| tracing::debug!(%error, what = description, "host events unavailable"))
        .ok()
}
