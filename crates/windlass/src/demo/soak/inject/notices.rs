//! Overflow of the agent's inotify queue, which loses events of the plugin folder.

use std::{
    fs::{self, File},
    io,
    path::Path,
    time::Duration,
};

use anyhow::{Context as _, Result};
use tokio::time::{Instant, sleep};

use super::super::{agent::Mounts, invariant::Violation, run::SoakRun, schedule::Fault};

/// Maximum size of the host's queue, in events; larger queues take too long to overflow.
const MAX_QUEUE: usize = 200_000;

/// Time in which the agent reads queued events.
const DRAIN_TIME: Duration = Duration::from_secs(1);

/// Deadline for the agent to notice a change. Its regular check, every ten seconds, would be too late.
const DETECTION_LIMIT: Duration = Duration::from_secs(5);

// === impl SoakRun ===

impl SoakRun {
    /// Replaces the plugin folder while the queue overflows. Later changes in the new folder have to be noticed long
    /// before the regular check.
    pub(super) async fn overflow_inotify(&mut self) -> Result<Option<Instant>> {
        let queue_size = inotify_queue_size()?;
        let skip_reason = match self.rig.agent.mounts {
            Mounts::Shipped => Some("a pod's mount keeps the original folder".into()),
            Mounts::Whole if queue_size > MAX_QUEUE => {
                Some(format!("this host queues {queue_size} inotify events"))
            }
            Mounts::Whole => None,
        };
        if let Some(reason) = skip_reason {
            self.tally.left_out.insert(Fault::NoticesLost.kind(), reason);
            return Ok(None);
        }
        self.rig.mark_agent_stopped();
        self.rig.agent.freeze();
        let dir = self.rig.plugin_dir();
        let result = overflow_queue(&dir, queue_size)
            .and_then(|()| replace_folder(&dir, &self.rig.dir().join("away")));
        self.rig.agent.thaw();
        self.rig.mark_agent_started();
        result.context("cannot change the plugin folder")?;
        sleep(DRAIN_TIME).await;
        let since = self.rig.kubelet.events().next_sequence();
        self.rig.kubelet.replace_registration_socket(1)?;
        let recovery_start = Instant::now();
        let registration = self.rig.wait_for_registration(since, DETECTION_LIMIT).await;
        let fault = Fault::NoticesLost.kind();
        registration.map_err(Violation::not_recovered(fault, DETECTION_LIMIT))?;
        Ok(Some(recovery_start))
    }
}

/// Size of the host's inotify queue, in events.
fn inotify_queue_size() -> Result<usize> {
    let path = "/proc/sys/fs/inotify/max_queued_events";
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    text.trim().parse().with_context(|| format!("{path} has no number"))
}

/// Overflows the queue: the creation and the removal of a file are an event each.
fn overflow_queue(dir: &Path, queue_size: usize) -> io::Result<()> {
    let file = dir.join("overflow");
    for _ in 0..=queue_size / 2 {
        File::create(&file)?;
        fs::remove_file(&file)?;
    }
    Ok(())
}

/// Replaces the folder by a new one with the same content.
fn replace_folder(dir: &Path, away: &Path) -> io::Result<()> {
    fs::rename(dir, away)?;
    fs::create_dir(dir)?;
    for entry in fs::read_dir(away)? {
        let entry = entry?;
        fs::rename(entry.path(), dir.join(entry.file_name()))?;
    }
    fs::remove_dir(away)
}
