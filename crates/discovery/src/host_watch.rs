//! Notices from the host: a device came, went, or changed its driver.
//!
//! The kernel tells of devices by netlink, and of files by inotify. Neither says what is there now: a
//! notice makes sources look. What cannot be listened to is left to their regular look.

mod folders;
mod uevents;

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, time::sleep};
use tokio_util::sync::CancellationToken;
use windlass_config::Policy;
use windlass_host::Host;

use self::{
    folders::{Folders, watched},
    uevents::Uevents,
};

/// Counts notices from the host.
#[derive(Debug)]
pub struct HostWatch {
    host: Host,
    policy: watch::Receiver<Arc<Policy>>,
    /// Boxed, since it holds the room for its notices.
    folders: Option<Box<Folders>>,
    uevents: Option<Uevents>,
    changes: watch::Sender<u64>,
}

/// How often sources look without a notice, should one have been lost.
const AT_LEAST_EVERY: Duration = Duration::from_secs(60);

// === impl HostWatch ===

impl HostWatch {
    /// Begins to listen; what the policy's sources are looked for in is listened to as well.
    pub fn new(host: &Host, policy: watch::Receiver<Arc<Policy>>) -> (Self, watch::Receiver<u64>) {
        let (changes, receiver) = watch::channel(0);
        // A simulated machine has no kernel that could tell.
        let uevents =
            if host.simulated().is_some() { None } else { told(Uevents::new(), "uevents") };
        let folders = told(Folders::new(), "folders").map(Box::new);
        let mut watch = Self { host: host.clone(), policy, folders, uevents, changes };
        watch.follow();
        (watch, receiver)
    }

    /// Counts until stopped.
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = next(self.uevents.as_mut()) => {}
                () = changed(self.folders.as_deref_mut()) => self.follow(),
                Ok(()) = self.policy.changed() => self.follow(),
                () = sleep(AT_LEAST_EVERY) => self.follow(),
            }
            // After what there is to watch was found: what comes later is told.
            self.changes.send_modify(|count| *count += 1);
        }
    }

    /// Watches what is there now of the folders that matter.
    fn follow(&mut self) {
        let policy = self.policy.borrow_and_update().clone();
        if let Some(folders) = &mut self.folders {
            folders.follow(watched(&self.host, &policy));
        }
    }
}

/// What can be listened to; what cannot is said once, for whoever asks why a change was noticed late.
fn told<T>(attempt: std::io::Result<T>, what: &str) -> Option<T> {
    attempt.map_err(|error| tracing::debug!(%error, what, "cannot be listened to")).ok()
}

async fn next(uevents: Option<&mut Uevents>) {
    match uevents {
        Some(uevents) => uevents.next().await,
        None => std::future::pending().await,
    }
}

async fn changed(folders: Option<&mut Folders>) {
    match folders {
        Some(folders) => folders.changed().await,
        None => std::future::pending().await,
    }
}
