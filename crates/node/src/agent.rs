//! The agent: built from a configuration, then run until told to stop.

mod assembly;
mod lock;
mod parts;
mod policy;
mod standby;

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    pin::pin,
    sync::Arc,
};

use assembly::Ground;
use lock::NodeLock;
use parts::Parts;
use tokio::sync::{Notify, watch};
use windlass_allocations::ledger::LedgerDesk;
use windlass_cluster::InvalidNodeName;
use windlass_config::{Config, Policy};
use windlass_core::{device::Device, health::HealthState, inventory::Inventory};
use windlass_discovery::mig::PartitionDesk;
use windlass_host::{clock::Clock, deadline, directory::DirectoryWatch};
use windlass_kubelet_api::{deviceplugin::PLUGIN_DIR, socket::SocketError};
use windlass_resources::NodeState;

pub use lock::Lost;
pub use standby::{Succession, await_kubelet, await_predecessor, stand_by};

use crate::{
    admin::{DoorError, Doors},
    metrics, reconciler,
    reload::Follow,
};
use policy::PolicySource;

/// An agent with everything it needs in hand: nothing that can be wrong at the start is left to the
/// run.
#[derive(Debug)]
pub struct Agent {
    state: watch::Receiver<Arc<NodeState>>,
    partitions: PartitionDesk,
    admin_address: Option<SocketAddr>,
    parts: Parts,
    lock: NodeLock,
    /// From the kubelet's folder, before and after the lock is looked at.
    notices: (watch::Receiver<u64>, watch::Sender<u64>),
}

/// Why an agent cannot start. Nothing of another agent's was touched.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A folder cannot be made or written to.
    #[error("cannot write to {path}: run as root, or choose another folder with {flag}")]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The flag that names it.
        flag: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// The address for health and metrics, or the socket for probes, cannot be had.
    #[error(transparent)]
    Door(#[from] DoorError),
    /// Another agent serves the same kubelet.
    #[error("another windlass node serves {0}: stop it first")]
    Taken(PathBuf),
    /// Another agent, of another kubelet, has the same records.
    #[error(
        "another windlass node keeps its records in {0}: stop it first, or choose another folder with \
         --state-dir"
    )]
    StateTaken(PathBuf),
    /// The file that earlier versions lock cannot be had.
    #[error("cannot lock {path}: remove it, and run as root")]
    Lock {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The API server is needed, and this node has no name there.
    #[error("cannot speak to the API server")]
    Cluster(#[from] InvalidNodeName),
    /// A socket's path does not fit.
    #[error("cannot serve a resource")]
    Socket(#[from] SocketError),
    /// The kubelet's directory cannot be watched.
    #[error("cannot watch {path}")]
    Watch {
        /// The directory.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
}

// === impl Agent ===

impl Agent {
    /// Takes the kubelet's directory, checks everything, and starts the parts.
    pub fn start(config: &Config, clock: Clock) -> Result<Self, StartError> {
        let policy = watch::Sender::new(Arc::new(config.policy.clone()));
        Self::start_under(config, policy.subscribe(), clock)
    }

    /// As [`Agent::start`], under a policy that may be replaced while the agent runs.
    pub fn start_under(
        config: &Config,
        policy: watch::Receiver<Arc<Policy>>,
        clock: Clock,
    ) -> Result<Self, StartError> {
        Self::start_with(config, PolicySource::Given(policy), clock)
    }

    /// As [`Agent::start`], with a configuration that is read again when it changes.
    pub fn start_following(
        config: &Config,
        follow: Follow,
        clock: Clock,
    ) -> Result<Self, StartError> {
        Self::start_with(config, PolicySource::Followed(follow), clock)
    }

    fn start_with(config: &Config, source: PolicySource, clock: Clock) -> Result<Self, StartError> {
        let dir = config.places.kubelet_dir.join(PLUGIN_DIR);
        check_sockets(&dir, &config.policy)?;
        let lock = NodeLock::take(&dir, &config.places.state_dir)?;
        let watched = DirectoryWatch::new(&dir)
            .map_err(|source| StartError::Watch { path: dir.clone(), source })?;
        let doors = Doors::bind(config.listen, config.probe_socket.as_deref())?;
        let admin_address = doors.address();
        let cluster = source.client(config)?;
        let (registry, instruments) = metrics::registry(&clock);
        let mut parts = Parts::default();
        let (count, seen) = watch::channel(0);
        let (pass_on, directory) = watch::channel(0);
        let watching = watched.run(count, config.session.look_interval);
        let stop = parts.token();
        // Its notices are read to the very end, by what keeps the locks, so it ends by itself.
        let watching = async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = watching => {}
            }
        };
        parts.add("watch of the kubelet's folder", watching);
        let reload = instruments.reload();
        let policy = source.start(config, cluster.as_ref(), (clock, reload), &mut parts)?;
        let ledger = LedgerDesk::unread();
        let ground = Ground { dir, directory, doors, cluster, policy, ledger, clock };
        let (state, partitions) =
            assembly::assemble(config, ground, registry, instruments, &mut parts);
        let notices = (seen, pass_on);
        Ok(Self { state, partitions, admin_address, parts, lock, notices })
    }

    /// The node's state, for whoever wants to watch it.
    pub fn state(&self) -> watch::Receiver<Arc<NodeState>> {
        self.state.clone()
    }

    /// How MIG partitions are made and removed while the agent runs.
    pub fn partitions(&self) -> PartitionDesk {
        self.partitions.clone()
    }

    /// Where health and metrics are served, if they are.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin_address
    }

    /// Runs until `shutdown`, or until a part fails or another agent has the node, which is reported. The node is
    /// locked until all has ended.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), PartFailed> {
        let Self { mut parts, lock, notices: (seen, pass_on), .. } = self;
        // It has the locks, and so stays until all has ended.
        let mut keeping = pin!(lock.keep(seen, &pass_on));
        let (outcome, _rest) = tokio::select! {
            () = shutdown => (Ok(()), None),
            ended = parts.next_end() => (Err(PartFailed::from(ended)), None),
            (rest, lost) = &mut keeping => (Err(PartFailed::Lost(lost)), Some(rest)),
        };
        parts.stop().await;
        outcome
    }
}

/// A part of the agent ended though it should not.
#[derive(Debug, thiserror::Error)]
pub enum PartFailed {
    /// It came to an end.
    #[error("the agent's {0} ended unexpectedly")]
    Ended(&'static str),
    /// It panicked.
    #[error("a part of the agent panicked")]
    Panicked(#[from] tokio::task::JoinError),
    /// Another agent has the node.
    #[error(transparent)]
    Lost(#[from] Lost),
}

impl From<Result<&'static str, tokio::task::JoinError>> for PartFailed {
    fn from(ended: Result<&'static str, tokio::task::JoinError>) -> Self {
        ended.map_or_else(Self::Panicked, Self::Ended)
    }
}

/// Looks at the host once. A source that does not answer in time is `Starting` in the answer.
pub async fn survey(config: &Config, clock: Clock) -> NodeState {
    let (mut parts, news) = (Parts::default(), Arc::new(Notify::new()));
    let policy = watch::Sender::new(Arc::new(config.policy.clone())).subscribe();
    // One look needs no notices.
    let changes = watch::Sender::new(0).subscribe();
    let host = config.places.roots().host;
    let sources = windlass_discovery::sources(
        &config.places,
        &host,
        &policy,
        &changes,
        clock,
        &news,
        &parts.token(),
    );
    let snapshots = assembly::start(sources, &mut parts);
    let complete = async {
        while !has_answered(&reconciler::once::merge(&snapshots), &config.policy) {
            news.notified().await;
        }
    };
    // Late answers are in what follows, or are not.
    let _ = deadline::timeout(config.policy.health.call_deadline * 3, complete).await;
    let state = reconciler::once::look_once(config, &snapshots);
    // A part that hangs in a driver is left behind.
    parts.stop().await;
    state
}

/// Whether every source has answered, and every probe that the configuration describes.
fn has_answered(inventory: &Inventory, policy: &Policy) -> bool {
    let is_probed = |device: &&Device| {
        let rule = policy.sources.iter().find(|rule| rule.name == device.source);
        rule.is_some_and(|rule| rule.probe.is_some())
    };
    let is_known = |device: &Device| device.health.state != HealthState::Unknown;
    inventory.is_complete() && inventory.devices.iter().filter(is_probed).all(is_known)
}

/// Every socket whose name is known beforehand must fit.
fn check_sockets(dir: &Path, policy: &Policy) -> Result<(), SocketError> {
    windlass_deviceplugin::kubelet_path(dir)?;
    policy
        .known_names()
        .iter()
        .try_for_each(|name| windlass_deviceplugin::socket_path(dir, name).map(drop))
}

#[cfg(test)]
mod tests;
