//! Reads the configuration again when its file changed, when it is asked to, and when the node's label
//! names another one. A new policy is published; one that cannot be read changes nothing, and is told.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use tokio::{sync::watch, task::spawn_blocking, time::timeout};
use tokio_util::sync::CancellationToken;
use windlass_config::{Config, ConfigError, LabelMemory, LabelValue, Policy, Remark};
use windlass_host::{
    causes,
    clock::Clock,
    directory::DirectoryWatch,
    watch::{changed, publish},
};

/// How the configuration and its warnings are read: file, variables and flags, for a label's value.
pub type Load =
    Arc<dyn Fn(&LabelValue) -> Result<(Config, Vec<Remark>), ConfigError> + Send + Sync>;

/// What makes the configuration worth reading again.
#[derive(Debug)]
pub struct Wakes {
    /// Counts requests, such as SIGHUP.
    pub asked: watch::Receiver<u64>,
    /// The node's label, where it names the configuration.
    pub label: watch::Receiver<LabelValue>,
}

/// What an agent needs to follow its configuration.
#[derive(Clone)]
pub struct Follow {
    /// How it is read.
    pub load: Load,
    /// The folder in which a change shows.
    pub folder: Option<PathBuf>,
    /// Counts requests, such as SIGHUP.
    pub asked: watch::Receiver<u64>,
    /// The node's label that names the configuration, where one does.
    pub label: Option<String>,
}

/// How reloading fares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReloadStatus {
    /// When a configuration was last read and was right, whether it differed or not.
    pub last_success: Timestamp,
    /// What is wrong with the newest one; the last good one holds.
    pub error: Option<String>,
    /// Keys that changed and are not followed until a restart.
    pub restart_for: Vec<&'static str>,
}

/// Reads the configuration again whenever there is a reason to.
pub struct Reloader {
    load: Load,
    wakes: Wakes,
    /// Boxed, since it holds the room for its notices.
    folder: Option<Box<DirectoryWatch>>,
    clock: Clock,
    /// As the agent was started.
    started: Config,
    policy: watch::Sender<Arc<Policy>>,
    status: watch::Sender<ReloadStatus>,
    /// What was remarked on the file that was read last.
    warnings: Vec<Remark>,
}

/// Why the configuration is read again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reason {
    /// Something about it changed.
    Changed,
    /// Someone asked for it.
    Asked,
}

/// Writes come in bursts; one reload serves them all.
const SETTLE: Duration = Duration::from_millis(50);

/// The longest burst that is waited for.
const BURST: Duration = Duration::from_secs(1);

/// How often the file is read without a reason, should a notice have been lost, or its folder be a link
/// to one that changes.
const LOOK_INTERVAL: Duration = Duration::from_secs(30);

// === impl Reloader ===

impl Reloader {
    /// Watches the folder that the file lies in, if there is one. `started` is what was loaded first.
    pub fn new(
        started: Config,
        load: Load,
        folder: Option<&Path>,
        wakes: Wakes,
        clock: Clock,
    ) -> io::Result<Self> {
        let folder = folder.map(DirectoryWatch::of_contents).transpose()?.map(Box::new);
        let (policy, _) = watch::channel(Arc::new(started.policy.clone()));
        let last_success = clock.now();
        let status = ReloadStatus { last_success, error: None, restart_for: Vec::new() };
        let (status, _) = watch::channel(status);
        let warnings = Vec::new();
        Ok(Self { load, wakes, folder, clock, started, policy, status, warnings })
    }

    /// The newest policy that was right.
    pub fn policy(&self) -> watch::Receiver<Arc<Policy>> {
        self.policy.subscribe()
    }

    /// How reloading fares.
    pub fn status(&self) -> watch::Receiver<ReloadStatus> {
        self.status.subscribe()
    }

    /// Runs until stopped.
    pub async fn run(mut self, stop: CancellationToken) {
        let (sender, mut changes) = watch::channel(0);
        let folder = self.folder.take();
        let watching = Box::pin(async {
            match folder {
                Some(folder) => folder.run(sender, LOOK_INTERVAL).await,
                None => std::future::pending().await,
            }
        });
        let reloading = async {
            loop {
                let reason = self.woken(&mut changes).await;
                self.reload(reason).await;
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = watching => {}
            () = reloading => {}
        }
    }

    /// Waits for a reason, and for the end of a burst of changes.
    async fn woken(&mut self, changes: &mut watch::Receiver<u64>) -> Reason {
        tokio::select! {
            () = changed(changes) => {
                let quiet = async {
                    while timeout(SETTLE, changed(changes)).await.is_ok() {}
                };
                // A folder that never rests is read all the same.
                let _ = timeout(BURST, quiet).await;
                Reason::Changed
            }
            () = changed(&mut self.wakes.asked) => Reason::Asked,
            () = changed(&mut self.wakes.label) => Reason::Changed,
        }
    }

    async fn reload(&mut self, reason: Reason) {
        let (load, label) = (Arc::clone(&self.load), self.wakes.label.borrow().clone());
        let memory = LabelMemory::new(&self.started.places.state_dir);
        let read = move || -> Result<_, ConfigError> {
            let loaded = load(&label)?;
            if let Err(error) = memory.keep(&label) {
                tracing::warn!(%error, "cannot remember which configuration the node's label names");
            }
            Ok(loaded)
        };
        let loaded = spawn_blocking(read).await;
        match loaded {
            Ok(Ok((config, warnings))) => self.take(config, warnings, reason),
            Ok(Err(error)) => self.refuse(causes(&error), reason),
            Err(panic) => self.refuse(panic.to_string(), reason),
        }
    }

    fn take(&mut self, config: Config, warnings: Vec<Remark>, reason: Reason) {
        for Remark { line, text } in warnings.iter().filter(|it| !self.warnings.contains(it)) {
            tracing::warn!(line, "configuration: {text}");
        }
        self.warnings = warnings;
        let restart_for = changed_places(&self.started, &config);
        let followed = publish(&self.policy, Arc::new(config.policy));
        let earlier = self.status.borrow().clone();
        if followed {
            tracing::info!("configuration reloaded");
        } else if earlier.error.is_some() {
            tracing::info!("configuration is right again, and as it was");
        } else if reason == Reason::Asked {
            tracing::info!("configuration is unchanged");
        }
        if !restart_for.is_empty() && restart_for != earlier.restart_for {
            let keys = restart_for.join(", ");
            tracing::warn!(keys, "the configuration changed in places that need a restart");
        }
        let last_success = self.clock.now();
        self.publish(ReloadStatus { last_success, error: None, restart_for });
    }

    fn refuse(&mut self, error: String, reason: Reason) {
        let earlier = self.status.borrow().clone();
        // Whoever asks gets an answer, also when it is the same again.
        if earlier.error.as_ref() != Some(&error) || reason == Reason::Asked {
            tracing::error!(error, "configuration is wrong; the last good one holds");
            self.publish(ReloadStatus { error: Some(error), ..earlier });
        }
    }

    fn publish(&self, status: ReloadStatus) {
        publish(&self.status, status);
    }
}

impl std::fmt::Debug for Follow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Follow").field("folder", &self.folder).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Reloader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reloader").field("wakes", &self.wakes).finish_non_exhaustive()
    }
}

/// The keys of places that differ.
fn changed_places(old: &Config, new: &Config) -> Vec<&'static str> {
    let (was, is) = (&old.places, &new.places);
    let all = [
        ("kubeletDir", was.kubelet_dir != is.kubelet_dir),
        ("hostRoot", was.host_root != is.host_root),
        ("hostRootOnNode", was.host_root_on_node != is.host_root_on_node),
        ("nvmlLibrary", was.driver.nvml_library != is.driver.nvml_library),
        (
            "driver",
            (&was.driver.root, &was.driver.mounted_at, &was.driver.dev_root)
                != (&is.driver.root, &is.driver.mounted_at, &is.driver.dev_root),
        ),
        ("cdiDir", was.cdi_dir != is.cdi_dir),
        ("stateDir", was.state_dir != is.state_dir),
        ("mpsDir", was.mps_dir != is.mps_dir),
        ("deviceInfoDir", was.device_info_dir != is.device_info_dir),
        ("mps", old.mps != new.mps),
        ("listen", old.listen != new.listen),
        ("probeSocket", old.probe_socket != new.probe_socket),
        ("disclose", old.disclose != new.disclose),
        ("cluster", old.cluster != new.cluster),
        ("dra.driver", old.dra_driver != new.dra_driver),
    ];
    all.into_iter().filter(|(_, differs)| *differs).map(|(key, _)| key).collect()
}

#[cfg(test)]
mod tests;
