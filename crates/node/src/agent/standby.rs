//! Standby of an agent that waits for another agent to end, or for a kubelet.
//!
//! The holder of [`NodeLock`] serves the node. During a rolling update with surge, two pods run on one node. Sockets,
//! documents and state files always have one owner; the kubelet repeats calls that failed between two owners. A kubelet
//! that never ran has no folder yet, and the agent may start before it.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use windlass_config::Config;
use windlass_host::blocking;
use windlass_kubelet_api::deviceplugin::PLUGIN_DIR;

use super::{NodeLock, StartError};
use crate::admin::{self, Listeners, Standby};

/// Poll interval of the lock; the kernel does not report a release.
const LOCK_POLL: Duration = Duration::from_millis(100);

/// Longest exit of a killed agent: the kernel releases its locks when the last thread has ended.
const EXIT_TIME: Duration = Duration::from_secs(2);

/// Reaction to another agent that serves the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StandbyMode {
    /// Fail: this agent is meant to be the only one.
    Off,
    /// Wait, and take over when the other ends.
    On,
}

/// Poll interval of the kubelet's folder; its parent may be missing too, so there is nothing to watch.
const FOLDER_POLL: Duration = Duration::from_secs(1);

/// Interval of repeated warnings: a mistyped folder never appears.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Waits until the kubelet's folder exists.
///
/// # Flow
///
/// A missing folder is logged every minute. Meanwhile the agent is live but not ready. With
/// [`StandbyMode::On`] it is ready, because a rollout waits for that. [`stand_by`] or
/// [`Agent::start`](super::Agent::start) follows.
///
/// # Errors
///
/// A listener for health and readiness cannot be bound.
pub async fn await_kubelet(config: &Config, mode: StandbyMode) -> Result<(), StartError> {
    let folder = &config.places.kubelet_dir;
    if folder.is_dir() {
        return Ok(());
    }
    let wait = async {
        let mut logged: Option<Instant> = None;
        while !folder.is_dir() {
            if logged.is_none_or(|logged| logged.elapsed() >= LOG_INTERVAL) {
                logged = Some(Instant::now());
                tracing::warn!(
                    folder = %folder.display(),
                    "the kubelet has no such folder, waiting for it: is the kubelet running? --kubelet-dir names another"
                );
            }
            sleep(FOLDER_POLL).await;
        }
        Ok(())
    };
    let standby = Standby::for_kubelet(folder);
    let standby = match mode {
        StandbyMode::Off => standby,
        StandbyMode::On => standby.into_ready(),
    };
    serve_probes_until(config, standby, wait).await
}

/// Waits until no other agent serves the kubelet.
///
/// # Flow
///
/// While another agent serves, this one is live and ready. [`Agent::start`](super::Agent::start) follows.
///
/// # Errors
///
/// The kubelet's folder cannot be written, or the address cannot be bound: on the host's network the other agent may
/// have it.
pub async fn stand_by(config: &Config) -> Result<(), StartError> {
    if !is_locked(config).await? {
        return Ok(());
    }
    let kubelet = config.places.kubelet_dir.display();
    tracing::info!(%kubelet, "another agent serves: standing by until it ends");
    let wait = async {
        while is_locked(config).await? {
            sleep(LOCK_POLL).await;
        }
        Ok(())
    };
    serve_probes_until(config, Standby::for_predecessor(), wait).await
}

/// Waits up to two seconds for an agent that was killed a moment ago.
///
/// [`Agent::start`](super::Agent::start) follows, and reports a remaining conflict.
pub async fn await_predecessor(config: &Config) {
    let deadline = Instant::now() + EXIT_TIME;
    while matches!(is_locked(config).await, Ok(true)) && Instant::now() < deadline {
        sleep(LOCK_POLL).await;
    }
}

/// Serves probes while waiting; releases the address before it returns.
async fn serve_probes_until(
    config: &Config,
    standby: Standby,
    wait: impl Future<Output = Result<(), StartError>>,
) -> Result<(), StartError> {
    let listeners = Listeners::bind(config.listen, config.probe_socket.as_deref())?;
    let stop = CancellationToken::new();
    let server = admin::stand_by(listeners, standby, stop.clone());
    let wait = async {
        let outcome = wait.await;
        stop.cancel();
        outcome
    };
    tokio::join!(server, wait).1
}

/// True if another agent holds the node. Runs on a blocking thread, so that a hanging disk does not delay the shutdown.
async fn is_locked(config: &Config) -> Result<bool, StartError> {
    let (dir, state_dir) =
        (config.places.kubelet_dir.join(PLUGIN_DIR), config.places.state_dir.clone());
    match blocking(move || NodeLock::acquire(&dir, &state_dir).map(drop)).await {
        Ok(()) => Ok(false),
        Err(StartError::KubeletInUse(_) | StartError::StateFolderInUse(_)) => Ok(true),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use windlass_config::HostPaths;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_wait_for_a_killed_agent_ends_with_it_or_after_two_seconds() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let config = Config {
            places: HostPaths {
                kubelet_dir: folder.path().to_owned(),
                state_dir: folder.path().join("state"),
                ..HostPaths::default()
            },
            ..Config::default()
        };
        let plugins = config.places.kubelet_dir.join(PLUGIN_DIR);
        let other = NodeLock::acquire(&plugins, &config.places.state_dir).expect("free");
        let start = Instant::now();
        await_predecessor(&config).await;
        assert_eq!(start.elapsed(), EXIT_TIME);
        let other_ends = async move {
            sleep(LOCK_POLL / 2).await;
            drop(other);
        };
        tokio::join!(await_predecessor(&config), other_ends);
        assert!(start.elapsed() < EXIT_TIME + LOCK_POLL * 2);
        NodeLock::acquire(&plugins, &config.places.state_dir).expect("its turn");
    }
}
