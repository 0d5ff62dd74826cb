//! Change notifications of the host: devices that come, go, or change drivers.
//!
//! The kernel reports devices by netlink and files by inotify. A report only triggers a scan. Where neither works,
//! scans at the probe interval find changes.

mod folders;

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, time::sleep};
use tokio_util::sync::CancellationToken;
use windlass_config::Policy;
use windlass_host::{Host, optional, uevents::Uevents};

use self::folders::{Folders, watched};

/// Counter of host events.
#[derive(Debug)]
pub struct HostWatch {
    host: Host,
    policy: watch::Receiver<Arc<Policy>>,
    /// Boxed for its large event buffer.
    folders: Option<Box<Folders>>,
    uevents: Option<Uevents>,
    changes: watch::Sender<u64>,
}

/// Interval at which an event is counted without a report of the kernel, since one may have been lost.
const FALLBACK_INTERVAL: Duration = Duration::from_secs(60);

// === impl HostWatch ===

impl HostWatch {
    /// Subscribes to events of devices, and of folders of configured sources. The receiver has the number of events.
    pub fn new(host: &Host, policy: watch::Receiver<Arc<Policy>>) -> (Self, watch::Receiver<u64>) {
        let (changes, receiver) = watch::channel(0);
        // Simulated machines have no kernel events.
        let uevents =
            if host.simulated().is_some() { None } else { subscribed(Uevents::new(), "uevents") };
        let folders = subscribed(Folders::new(), "folders").map(Box::new);
        let mut watch = Self { host: host.clone(), policy, folders, uevents, changes };
        watch.follow();
        (watch, receiver)
    }

    /// Counts events until stopped.
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = optional(self.uevents.as_mut().map(Uevents::next)) => {}
                () = optional(self.folders.as_mut().map(|folders| folders.changed())) => self.follow(),
                Ok(()) = self.policy.changed() => self.follow(),
                () = sleep(FALLBACK_INTERVAL) => self.follow(),
            }
            // After subscribing to new folders, so that no later event is lost.
            self.changes.send_modify(|count| *count += 1);
        }
    }

    /// Subscribes to the relevant folders as they are now.
    fn follow(&mut self) {
        let policy = self.policy.borrow_and_update().clone();
        if let Some(folders) = &mut self.folders {
            folders.follow(watched(&self.host, &policy));
        }
    }
}

/// A subscription; failure is logged once, for debugging late scans.
fn subscribed<T>(attempt: std::io::Result<T>, what: &str) -> Option<T> {
    attempt.map_err(|error| tracing::debug!(%error, what, "host events unavailable")).ok()
}
