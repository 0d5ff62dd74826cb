//! Configuration reload: on a change of the file, on request, and on a change of the node's label. A valid policy is
//! published; an invalid one is logged and ignored.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use tokio::{sync::watch, task::spawn_blocking, time::timeout};
use tokio_util::sync::CancellationToken;
use windlass_config::{Config, ConfigError, Diagnostic, LabelFile, LabelValue, Policy};
use windlass_host::{
    causes,
    clock::Clock,
    directory::DirectoryWatch,
    watch::{changed, publish_if_changed},
};

/// Loads the configuration and its warnings from file, variables and flags, for a label value.
pub type LoadConfig =
    Arc<dyn Fn(&LabelValue) -> Result<(Config, Vec<Diagnostic>), ConfigError> + Send + Sync>;

/// Triggers of a reload.
#[derive(Debug)]
pub struct ReloadTriggers {
    /// Counter of requests, such as SIGHUP.
    pub requests: watch::Receiver<u64>,
    /// Value of the node label that selects the configuration.
    pub label: watch::Receiver<LabelValue>,
}

/// Inputs of a [`Reloader`].
#[derive(Clone)]
pub struct ReloadSource {
    /// Loader of the configuration.
    pub load: LoadConfig,
    /// Folder to watch for changes.
    pub folder: Option<PathBuf>,
    /// Counter of requests, such as SIGHUP.
    pub requests: watch::Receiver<u64>,
    /// Key of the node label that selects the configuration.
    pub label: Option<String>,
}

/// Outcome of the latest reload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReloadStatus {
    /// Time of the latest valid configuration, changed or not.
    pub last_success: Timestamp,
    /// Error of the newest configuration; the last valid one stays in force.
    pub error: Option<String>,
    /// Changed keys that take effect after a restart only.
    pub restart_keys: Vec<String>,
}

/// Task that reloads the configuration.
pub struct Reloader {
    load: LoadConfig,
    triggers: ReloadTriggers,
    /// Boxed because of its large event buffer.
    folder: Option<Box<DirectoryWatch>>,
    clock: Clock,
    initial: Config,
    policy: watch::Sender<Arc<Policy>>,
    status: watch::Sender<ReloadStatus>,
    /// Warnings of the latest file.
    warnings: Vec<Diagnostic>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ReloadReason {
    /// The file or the label changed.
    Changed,
    /// Explicit request.
    Requested,
}

/// Quiet time after a change: writes come in bursts.
const QUIET_TIME: Duration = Duration::from_millis(50);

/// Longest wait for the end of a burst.
const MAX_BURST_WAIT: Duration = Duration::from_secs(1);

/// Interval of reloads without a trigger, for lost events and for folders that are links to a changing target.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);

// === impl Reloader ===

impl Reloader {
    /// Watches `folder`, if any. `initial` is the configuration in force.
    pub fn new(
        initial: Config,
        load: LoadConfig,
        folder: Option<&Path>,
        triggers: ReloadTriggers,
        clock: Clock,
    ) -> io::Result<Self> {
        let folder = folder.map(DirectoryWatch::with_contents).transpose()?.map(Box::new);
        let (policy, _) = watch::channel(Arc::new(initial.policy.clone()));
        let last_success = clock.now();
        let status = ReloadStatus { last_success, error: None, restart_keys: Vec::new() };
        let (status, _) = watch::channel(status);
        let warnings = Vec::new();
        Ok(Self { load, triggers, folder, clock, initial, policy, status, warnings })
    }

    /// The latest valid policy.
    pub fn policy(&self) -> watch::Receiver<Arc<Policy>> {
        self.policy.subscribe()
    }

    /// Outcome of the latest reload.
    pub fn status(&self) -> watch::Receiver<ReloadStatus> {
        self.status.subscribe()
    }

    /// Runs until stopped.
    pub async fn run(mut self, stop: CancellationToken) {
        let (sender, mut changes) = watch::channel(0);
        let folder = self.folder.take();
        let folder_watch = Box::pin(async {
            match folder {
                Some(folder) => folder.run(sender, CHECK_INTERVAL).await,
                None => std::future::pending().await,
            }
        });
        let reloads = async {
            loop {
                let reason = self.next_trigger(&mut changes).await;
                self.reload(reason).await;
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = folder_watch => {}
            () = reloads => {}
        }
    }

    /// Waits for a trigger, and for the end of a burst of changes.
    async fn next_trigger(&mut self, changes: &mut watch::Receiver<u64>) -> ReloadReason {
        tokio::select! {
            () = changed(changes) => {
                let quiet = async {
                    while timeout(QUIET_TIME, changed(changes)).await.is_ok() {}
                };
                // A folder that never stops changing is read after `MAX_BURST_WAIT`.
                let _ = timeout(MAX_BURST_WAIT, quiet).await;
                ReloadReason::Changed
            }
            () = changed(&mut self.triggers.requests) => ReloadReason::Requested,
            () = changed(&mut self.triggers.label) => ReloadReason::Changed,
        }
    }

    async fn reload(&mut self, reason: ReloadReason) {
        let load = Arc::clone(&self.load);
        let label = self.triggers.label.borrow().clone();
        let label_file = LabelFile::new(&self.initial.places.state_dir);
        let read = move || -> Result<_, ConfigError> {
            let loaded = load(&label)?;
            if let Err(error) = label_file.store(&label) {
                tracing::warn!(%error, "value of the node label not saved");
            }
            Ok(loaded)
        };
        let loaded = spawn_blocking(read).await;
        match loaded {
            Ok(Ok((config, warnings))) => self.apply(config, warnings, reason),
            Ok(Err(error)) => self.refuse(causes(&error), reason),
            Err(panic) => self.refuse(panic.to_string(), reason),
        }
    }

    fn apply(&mut self, config: Config, warnings: Vec<Diagnostic>, reason: ReloadReason) {
        for Diagnostic { line, text } in
            warnings.iter().filter(|warning| !self.warnings.contains(warning))
        {
            tracing::warn!(line, "configuration: {text}");
        }
        self.warnings = warnings;
        let (policy, restart_keys) = self.applicable(config);
        let is_changed = publish_if_changed(&self.policy, Arc::new(policy));
        let previous = self.status.borrow().clone();
        if is_changed {
            tracing::info!("configuration reloaded");
        } else if previous.error.is_some() {
            tracing::info!("configuration valid again, unchanged");
        } else if reason == ReloadReason::Requested {
            tracing::info!("configuration unchanged");
        }
        if !restart_keys.is_empty() && restart_keys != previous.restart_keys {
            let keys = restart_keys.join(", ");
            tracing::warn!(keys, "changed keys take effect after a restart of the agent");
        }
        let last_success = self.clock.now();
        self.publish(ReloadStatus { last_success, error: None, restart_keys });
    }

    /// The policy to put in force, and the changed keys that need a restart: `dra.driver`, and every key outside the
    /// policy.
    fn applicable(&self, config: Config) -> (Policy, Vec<String>) {
        let initial = &self.initial.policy;
        let mut policy = config.policy.clone();
        let mut restart_keys =
            Config { policy: initial.clone(), ..config }.changed_keys(&self.initial);
        if policy.dra.driver != initial.dra.driver {
            restart_keys.push("dra.driver".to_owned());
            policy.dra.driver.clone_from(&initial.dra.driver);
        }
        (policy, restart_keys)
    }

    fn refuse(&mut self, error: String, reason: ReloadReason) {
        let previous = self.status.borrow().clone();
        // An explicit request always gets an answer.
        if previous.error.as_ref() != Some(&error) || reason == ReloadReason::Requested {
            tracing::error!(error, "configuration invalid, keeping the last valid one");
            self.publish(ReloadStatus { error: Some(error), ..previous });
        }
    }

    fn publish(&self, status: ReloadStatus) {
        publish_if_changed(&self.status, status);
    }
}

impl std::fmt::Debug for ReloadSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReloadSource").field("folder", &self.folder).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Reloader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reloader").field("triggers", &self.triggers).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
