//! Reservation of a node for one agent, and the wait for it.
//!
//! The holder of [`NodeLock`] serves the node. During a rolling update with surge, two pods run on one node. Sockets,
//! documents and state files always have one owner; the kubelet repeats calls that failed between two owners. A kubelet
//! that never ran has no folder yet, and the agent may start before it.
//!
//! Nothing is released between the wait and the start: locks and listeners pass to the agent.

use std::{path::Path, time::Duration};

use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use windlass_config::{Config, HostPaths};
use windlass_host::blocking;
use windlass_kubelet_api::{deviceplugin::PLUGIN_DIR, socket::SocketError};

use super::{NodeLock, StartError};
use crate::admin::{self, Listeners, Standby};

/// Exclusive use of a node, and the bound listeners of its health and metrics.
#[derive(Debug)]
pub struct Reservation {
    pub(super) lock: NodeLock,
    pub(super) listeners: Listeners,
}

/// Reaction to another agent that serves the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StandbyMode {
    /// Fail: this agent is meant to be the only one. An agent that was killed a moment ago is waited for.
    Off,
    /// Wait, and take over when the other ends.
    On,
}

/// Poll interval of the lock; the kernel does not report a release.
const LOCK_POLL: Duration = Duration::from_millis(100);

/// Longest exit of a killed agent: the kernel releases its locks when the last thread has ended.
const EXIT_TIME: Duration = Duration::from_secs(2);

/// Poll interval of the kubelet's folder; its parent may be missing too, so there is nothing to watch.
const FOLDER_POLL: Duration = Duration::from_secs(1);

/// Interval of repeated warnings: a mistyped folder never appears.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

// === impl Reservation ===

impl Reservation {
    /// Reserves the node, or fails if another agent serves it.
    pub fn new(config: &Config) -> Result<Self, StartError> {
        check_sockets(config)?;
        Ok(Self { lock: acquire(&config.places)?, listeners: bind(config)? })
    }

    /// Waits until the kubelet's folder exists and no other agent serves the kubelet, and reserves the node.
    ///
    /// # Flow
    ///
    /// A missing folder is logged every minute. Meanwhile the agent is live but not ready. With [`StandbyMode::On`] it
    /// is ready, because a rollout waits for that. While another agent serves, an agent on standby is live and ready.
    ///
    /// # Errors
    ///
    /// The path of a socket is too long, the kubelet's folder cannot be written, another agent still serves after two
    /// seconds and the mode is [`StandbyMode::Off`], or a listener cannot be bound: on the host's network the other
    /// agent may have the address.
    pub async fn wait(config: &Config, mode: StandbyMode) -> Result<Self, StartError> {
        check_sockets(config)?;
        let folder = &config.places.kubelet_dir;
        let mut listeners = None;
        if !folder.is_dir() {
            let standby = Standby::for_kubelet(folder);
            let standby = match mode {
                StandbyMode::Off => standby,
                StandbyMode::On => standby.into_ready(),
            };
            let bound = bind(config)?;
            serve_probes_until(&bound, standby, folder_appears(folder)).await;
            listeners = Some(bound);
        }
        let patience = if mode == StandbyMode::On { Duration::ZERO } else { EXIT_TIME };
        let lock = match acquire_within(&config.places, patience).await {
            Err(error) if error.is_held_by_other() && mode == StandbyMode::On => {
                let kubelet = folder.display();
                tracing::info!(%kubelet, "another agent serves: standing by until it ends");
                let bound = listeners.map_or_else(|| bind(config), Ok)?;
                let end = acquire_within(&config.places, Duration::MAX);
                let lock = serve_probes_until(&bound, Standby::for_predecessor(), end).await?;
                listeners = Some(bound);
                lock
            }
            outcome => outcome?,
        };
        Ok(Self { lock, listeners: listeners.map_or_else(|| bind(config), Ok)? })
    }
}

/// Checks the length of every socket path that is known in advance.
fn check_sockets(config: &Config) -> Result<(), SocketError> {
    let dir = config.places.kubelet_dir.join(PLUGIN_DIR);
    windlass_deviceplugin::kubelet_path(&dir)?;
    let names = config.policy.resource_names();
    names.iter().try_for_each(|name| windlass_deviceplugin::socket_path(&dir, name).map(drop))
}

/// Returns once the kubelet's folder exists.
async fn folder_appears(folder: &Path) {
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
}

/// Locks the node once no other agent holds it, or fails if another still does after `patience`.
///
/// Each attempt runs on a blocking thread, so that a hanging disk does not delay the shutdown.
async fn acquire_within(places: &HostPaths, patience: Duration) -> Result<NodeLock, StartError> {
    let start = Instant::now();
    loop {
        let places = places.clone();
        match blocking(move || acquire(&places)).await {
            Err(error) if error.is_held_by_other() && start.elapsed() < patience => {
                sleep(LOCK_POLL).await;
            }
            outcome => return outcome,
        }
    }
}

fn acquire(places: &HostPaths) -> Result<NodeLock, StartError> {
    NodeLock::acquire(&places.kubelet_dir.join(PLUGIN_DIR), &places.state_dir)
}

fn bind(config: &Config) -> Result<Listeners, StartError> {
    Ok(Listeners::bind(config.listen, config.probe_socket.as_deref())?)
}

/// Serves probes until `wait` ends.
async fn serve_probes_until<T>(
    listeners: &Listeners,
    standby: Standby,
    wait: impl Future<Output = T>,
) -> T {
    let stop = CancellationToken::new();
    let wait = async {
        let outcome = wait.await;
        stop.cancel();
        outcome
    };
    tokio::join!(wait, admin::stand_by(listeners, standby, &stop)).0
}

#[cfg(test)]
mod tests {
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
        let other = Reservation::new(&config).expect("free");
        let start = Instant::now();
        let refused = Reservation::wait(&config, StandbyMode::Off).await.expect_err("it serves");
        assert!(matches!(refused, StartError::KubeletInUse(_)), "{refused}");
        assert_eq!(start.elapsed(), EXIT_TIME);
        let other_ends = async move {
            sleep(LOCK_POLL / 2).await;
            drop(other);
        };
        let (reserved, ()) = tokio::join!(Reservation::wait(&config, StandbyMode::Off), other_ends);
        reserved.expect("its turn");
        assert!(start.elapsed() < EXIT_TIME + LOCK_POLL * 2);
    }
}
