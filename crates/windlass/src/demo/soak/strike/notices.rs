//! The kernel drops notices of the plugin folder, since nobody reads them in time.

use std::{
    fs::{self, File},
    io,
    path::Path,
    time::Duration,
};

use anyhow::{Context as _, Result};
use tokio::time::{Instant, sleep};

use super::super::{agent::Mounts, invariant::Broken, run::Run, schedule::Blow};

/// How many notices a host keeps at most for which they are tried to be lost: others take too long.
const MOST_NOTICES: usize = 200_000;

/// How long the agent may take to read what notices there are.
const DRAINED: Duration = Duration::from_secs(1);

/// How soon what changes is noticed without the regular look, which comes after ten seconds.
const UNAIDED: Duration = Duration::from_secs(5);

// === impl Run ===

impl Run {
    /// The plugin folder is another one, and the notice of that is among those that the kernel drops: what comes and
    /// goes in the new folder is noticed long before the regular look all the same.
    pub(super) async fn lose_notices(&mut self) -> Result<Option<Instant>> {
        let kept = kept_notices()?;
        let left_out = match self.rig.agent.mounts() {
            Mounts::Shipped => {
                Some("a pod's mount stays with the folder that it was made of".into())
            }
            Mounts::Whole if kept > MOST_NOTICES => Some(format!("this host keeps {kept} notices")),
            Mounts::Whole => None,
        };
        if let Some(why) = left_out {
            self.tally.left_out.insert(Blow::NoticesLost.kind(), why);
            return Ok(None);
        }
        self.rig.agent_is_away();
        self.rig.agent.freeze();
        let dir = self.rig.plugin_dir();
        let changed = crowd(&dir, kept).and_then(|()| swap(&dir, &self.rig.dir().join("away")));
        self.rig.agent.thaw();
        self.rig.agent_runs();
        changed.context("cannot change the plugin folder")?;
        sleep(DRAINED).await;
        let since = self.rig.kubelet.calls().now();
        self.rig.kubelet.replace_registration_socket(1)?;
        let ended = Instant::now();
        let registered = self.rig.registered_since(since, UNAIDED).await;
        let (blow, after) = (Blow::NoticesLost.kind(), UNAIDED);
        registered.map_err(|left| Broken::NotBack { blow, after, left })?;
        Ok(Some(ended))
    }
}

/// How many notices the kernel keeps for a reader.
fn kept_notices() -> Result<usize> {
    let path = "/proc/sys/fs/inotify/max_queued_events";
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    text.trim().parse().with_context(|| format!("{path} has no number"))
}

/// More comes and goes than notices are kept of: each file makes two.
fn crowd(dir: &Path, kept: usize) -> io::Result<()> {
    let file = dir.join("crowd");
    for _ in 0..=kept / 2 {
        File::create(&file)?;
        fs::remove_file(&file)?;
    }
    Ok(())
}

/// Another folder has the path, with everything that was in the one before.
fn swap(dir: &Path, away: &Path) -> io::Result<()> {
    fs::rename(dir, away)?;
    fs::create_dir(dir)?;
    for entry in fs::read_dir(away)? {
        let entry = entry?;
        fs::rename(entry.path(), dir.join(entry.file_name()))?;
    }
    fs::remove_dir(away)
}
